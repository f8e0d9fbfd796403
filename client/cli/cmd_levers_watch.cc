// fulcrum levers watch and history.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/canary_view.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/lever_messages.h"
#include "client/cli/names.h"
#include "client/cli/reconnect.h"
#include "client/cli/text.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

// A canary is named after the epoch that its side has; the event's own is everybody else's.
std::string OfCanary(const v1::LeverEvent& event) {
  if (event.canary().empty()) return "";
  const std::string name = OneLine(event.canary());
  if (event.cause() != "canary_start") return name + ", ";
  return absl::StrFormat("%s: its side is epoch %s, the rest %d, ", name,
                         name.substr(name.find('/') + 1), event.epoch());
}

// With --json one line an event, so that a reader need not wait for the end.
void PrintEvent(const Context& context, const v1::LeverEvent& event) {
  const Json json = ToJson(event);
  if (context.json()) {
    context.out() << json.dump() << std::endl;
    return;
  }
  context.out() << json["time"].get<std::string>() << "  epoch " << event.epoch() << "  "
                << OneLine(event.lever()) << ": " << OneLine(event.from()) << " -> "
                << OneLine(event.to()) << "  ("
                << (event.cause() == "set" ? "" : OneLine(event.cause()) + ", ") << OfCanary(event)
                << Word(event.source()) << ", " << OneLine(event.actor())
                << (event.reason().empty() ? "" : ": " + OneLine(event.reason())) << ")"
                << (event.evidence().empty() ? "" : "  " + OneLine(event.evidence())) << std::endl;
}

// One line for a canary that is over; `by` and `reason` may be empty.
void PrintEnd(const Context& context, const std::string& canary, const std::string& state,
              const std::string& by, const std::string& reason, const std::string& evidence) {
  if (context.json()) return;  // what programs are told has it: an event's cause, a canary's state
  std::string why = OneLine(reason);
  if (!evidence.empty()) why += (why.empty() ? "" : "; ") + OneLine(evidence);
  context.out() << OneLine(canary) << " " << state << (by.empty() ? "" : " by " + OneLine(by))
                << (why.empty() ? "" : ": " + why) << std::endl;
}
void PrintEnd(const Context& context, const v1::Canary& canary) {
  // Its reason is why it was started.
  PrintEnd(context, canary.name(), Word(canary.state()), "", "", canary.evidence());
}
void PrintEnd(const Context& context, const v1::LeverEvent& event, v1::CanaryState state) {
  // The node ends a canary under the reason of its start; an operator has one of their own.
  const bool by_node = event.actor() == "node";
  PrintEnd(context, event.canary(), Word(state), event.actor(), by_node ? "" : event.reason(),
           event.evidence());
}

// What the event made of its canary, if it ended one.
std::optional<v1::CanaryState> EndOf(const v1::LeverEvent& event) {
  if (event.canary().empty()) return std::nullopt;
  if (event.cause() == "promote") return v1::CANARY_STATE_PROMOTED;
  if (event.cause() == "revert") return v1::CANARY_STATE_REVERTED;
  if (event.cause() == "abort") return v1::CANARY_STATE_ABORTED;
  return std::nullopt;
}

// What a stream was told so far, so that another one goes on behind it: an epoch's events are one
// step, and a connection may break between two of them.
class Seen {
 public:
  explicit Seen(uint64_t epoch) : epoch_(epoch) {}
  uint64_t epoch() const { return epoch_; }
  // For the next stream, which tells the last step again.
  uint64_t Resume() {
    skip_ = of_epoch_;
    return of_epoch_ > 0 ? epoch_ - 1 : epoch_;
  }
  void BeginAt(uint64_t epoch) { *this = Seen(epoch); }
  // Whether the event is new.
  bool Note(const v1::LeverEvent& event) {
    if (event.epoch() == epoch_ && skip_ > 0) {
      --skip_;
      return false;
    }
    if (event.epoch() != epoch_) of_epoch_ = 0;
    epoch_ = event.epoch();
    skip_ = 0;
    ++of_epoch_;
    return true;
  }

 private:
  uint64_t epoch_;
  int64_t of_epoch_ = 0, skip_ = 0;
};

class LeversWatch final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--since-epoch", &since_, "First the events newer than this; 0: only new ones");
    options.Add("--count", &count_, "Stop after so many events or tables; 0: never");
    options.Flag(
        "--events", &events_,
        "Changes, also while a canary runs; --json prints nothing else without --heartbeat");
    options.Add("--every", &every_, "Seconds from one table to the next");
    options.Flag("--heartbeat", &heartbeat_,
                 "Tell the node with every table that the canary's operator is there (not with "
                 "--events or --since-epoch, which print no tables)");
  }

  // A table again and again while a canary runs, else every change. --json is for programs, which
  // get what they ask for: changes, or with --heartbeat one canary a line.
  int Run(const Context& context) override {
    if (!(every_ > 0)) return context.InputError("--every: expected more than 0 seconds");
    // A canary with a heartbeat guard would be reverted under an operator who thinks they beat.
    if (heartbeat_ && (events_ || since_ > 0)) {
      return context.InputError(
          std::string(events_ ? "--events" : "--since-epoch") +
          " and --heartbeat: heartbeats go with tables, of which there are none among changes; "
          "run a second `fulcrum levers watch --heartbeat`");
    }
    auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    Reconnect node(context, *std::move(client));
    const auto levers = node.client().ListLevers(node.Call());
    if (!levers.ok()) return context.NodeError(levers.status(), kLookAtLevers);
    const bool lives = levers->has_canary() && Lives(levers->canary());
    if (heartbeat_ && !lives) return context.InputError("--heartbeat: no canary runs");
    const bool changes = events_ || since_ > 0 || (context.json() && !heartbeat_);
    if (lives && !changes) return Tables(context, node, levers->canary());
    if (levers->has_canary() && !lives) PrintEnding(context, node, levers->canary());
    return Events(context, node, since_ > 0 ? since_ : levers->epoch());
  }

 private:
  int Events(const Context& context, Reconnect& node, uint64_t since) {
    Seen seen(since);
    int64_t printed = 0;
    std::string over;  // the canary whose end was told
    const auto print = [&](const v1::LeverEvent& event) {
      if (!seen.Note(event)) return true;
      if (const auto end = EndOf(event); end && event.canary() != over) {
        over = event.canary();
        PrintEnd(context, event, *end);
      }
      PrintEvent(context, event);
      return ++printed != count_;
    };
    for (;;) {
      v1::WatchLeversRequest request;
      request.set_since_epoch(seen.Resume());
      const absl::Status status = node.client().WatchLevers(request, print, node.Call());
      if (status.ok()) return kOk;
      if (!Reconnect::Lost(status)) return context.NodeError(status, kLookAtLevers);
      const auto levers = node.Again(status);
      if (!levers.ok()) return context.NodeError(levers.status(), kLookAtLevers);
      if (levers->epoch() >= seen.epoch()) continue;
      context.err()
          << "fulcrum: the node keeps no journal: its epochs began anew, and what changed "
             "before is gone\n"
          << std::flush;
      seen.BeginAt(kFirstEpoch);
    }
  }

  int Tables(const Context& context, Reconnect& node, v1::Canary canary) {
    for (int64_t seen = 1;; ++seen) {
      if (context.json()) {
        context.out() << ToJson(canary).dump() << std::endl;
      } else {
        PrintCanary(context.out(), canary);
        context.out() << std::endl;
      }
      if (!Lives(canary)) {
        PrintEnding(context, node, canary);
        return kOk;
      }
      if (seen == count_) return kOk;
      absl::SleepFor(absl::Seconds(every_));
      absl::Status s = Refresh(node, canary);
      while (Reconnect::Lost(s)) {
        const auto levers = node.Again(s);
        if (!levers.ok()) return context.NodeError(levers.status(), kLookAtLevers);
        s = Refresh(node, canary);
      }
      if (absl::IsNotFound(s)) return Gone(context, node, canary);
      if (!s.ok()) return context.NodeError(s, kLookAtLevers);
    }
  }

  // NOT_FOUND when the node no longer knows the canary.
  absl::Status Refresh(Reconnect& node, v1::Canary& canary) const {
    auto levers = node.client().ListLevers(node.Call());
    if (!levers.ok()) return levers.status();
    // A node without a journal that restarted gives a new canary an old one's name.
    const v1::Canary& now = levers->canary();
    if (now.name() != canary.name() ||
        now.start_time().seconds() != canary.start_time().seconds() ||
        now.start_time().nanos() != canary.start_time().nanos()) {
      return absl::NotFoundError("");
    }
    canary = now;
    if (!heartbeat_ || !Lives(canary)) return absl::OkStatus();
    v1::HeartbeatCanaryRequest beat;
    beat.set_name(canary.name());
    auto answer = node.client().HeartbeatCanary(beat, node.Call());
    // One that is over is shown as such.
    if (absl::IsFailedPrecondition(answer.status())) return absl::OkStatus();
    if (!answer.ok()) return answer.status();
    canary = *std::move(answer);
    return absl::OkStatus();
  }

  // The event that ended the canary, if the node still has it.
  static absl::StatusOr<std::optional<v1::LeverEvent>> EndEvent(Reconnect& node,
                                                                const std::string& canary) {
    v1::ListLeverHistoryRequest request;
    request.set_limit(kWholeHistory);
    const auto history = node.client().ListLeverHistory(request, node.Call());
    if (!history.ok()) return history.status();
    // A node without a journal that restarted gives a new canary an old one's name: the last is it.
    std::optional<v1::LeverEvent> end;
    for (const v1::LeverEvent& event : history->events()) {
      if (EndOf(event) && event.canary() == canary) end = event;
    }
    return end;
  }

  // By whom is in the event alone. Without it, what the canary itself says is told.
  static void PrintEnding(const Context& context, Reconnect& node, const v1::Canary& canary) {
    const auto end = EndEvent(node, canary.name());
    if (end.ok() && end->has_value()) {
      PrintEnd(context, **end, canary.state());
    } else {
      PrintEnd(context, canary);
    }
  }

  // A node that restarted has the end of the canary in its journal, if it keeps one.
  static int Gone(const Context& context, Reconnect& node, v1::Canary& canary) {
    const auto end = EndEvent(node, canary.name());
    if (!end.ok()) return context.NodeError(end.status(), kLookAtLevers);
    if (end->has_value()) {
      canary.set_state(*EndOf(**end));
      canary.set_evidence((*end)->evidence());
      if (context.json()) context.out() << ToJson(canary).dump() << std::endl;
      PrintEnd(context, **end, canary.state());
      return kOk;
    }
    return context.NodeError(
        absl::NotFoundError(canary.name() + " is over, and how it ended is not known: the node "
                                            "restarted and keeps no journal"),
        kLookAtLevers);
  }

  static constexpr uint64_t kFirstEpoch = 1;  // of a node without a journal
  static constexpr int kWholeHistory = 1024;  // the most a node gives

  uint64_t since_ = 0;
  int64_t count_ = 0;
  bool events_ = false, heartbeat_ = false;
  double every_ = 2;
};

class LeversHistory final : public Command {
 public:
  void Declare(Options& options) override { options.Add("--limit", &limit_, "The newest so many"); }
  int Run(const Context& context) override {
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    v1::ListLeverHistoryRequest request;
    request.set_limit(limit_);
    const auto response = (*client)->ListLeverHistory(request, context.Call());
    if (!response.ok()) return context.NodeError(response.status(), kLookAtLevers);
    if (context.json()) {
      Json events = Json::array();
      for (const v1::LeverEvent& event : response->events()) events.push_back(ToJson(event));
      Print(context.out(), {{"events", std::move(events)}});
      return kOk;
    }
    for (const v1::LeverEvent& event : response->events()) PrintEvent(context, event);
    return kOk;
  }

 private:
  int limit_ = 100;
};

// `levers promote` and `levers abort`: of the named canary, or of the one that runs.
class LeversEnd final : public Command {
 public:
  explicit LeversEnd(bool promote) : promote_(promote) {}
  void Declare(Options& options) override {
    options.Add("name", &name_, "canaries/NUMBER (default: the one that runs)");
    options.Text("--reason", &reason_, "Kept in the event");
  }
  int Run(const Context& context) override {
    absl::Status utf8 = CheckUtf8("--reason", reason_);
    utf8.Update(CheckUtf8("name", name_));
    if (!utf8.ok()) return context.InputError(utf8);
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    if (name_.empty()) {
      const auto levers = (*client)->ListLevers(context.Call());
      if (!levers.ok()) return context.NodeError(levers.status(), kLookAtLevers);
      if (!levers->has_canary() || !Lives(levers->canary())) {
        return context.InputError("no canary runs");
      }
      name_ = levers->canary().name();
    }
    const auto ended = End(**client, context);
    if (!ended.ok()) return context.NodeError(ended.status(), kLookAtLevers);
    if (context.json()) {
      Print(context.out(), ToJson(*ended));
    } else {
      PrintCanary(context.out(), *ended);
    }
    return kOk;
  }

 private:
  absl::StatusOr<v1::Canary> End(client::Client& client, const Context& context) const {
    if (promote_) {
      v1::PromoteCanaryRequest request;
      request.set_name(name_);
      request.set_reason(reason_);
      return client.PromoteCanary(request, context.Call());
    }
    v1::AbortCanaryRequest request;
    request.set_name(name_);
    request.set_reason(reason_);
    return client.AbortCanary(request, context.Call());
  }

  const bool promote_;
  std::string name_, reason_;
};

}  // namespace

std::unique_ptr<Command> MakeLeversWatch() { return std::make_unique<LeversWatch>(); }
std::unique_ptr<Command> MakeLeversHistory() { return std::make_unique<LeversHistory>(); }
std::unique_ptr<Command> MakeLeversPromote() { return std::make_unique<LeversEnd>(true); }
std::unique_ptr<Command> MakeLeversAbort() { return std::make_unique<LeversEnd>(false); }

}  // namespace fulcrum::cli
