// fulcrum levers watch and history.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/time/clock.h"
#include "client/cli/canary_view.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/lever_messages.h"
#include "client/cli/names.h"
#include "client/cli/text.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

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
                << (event.cause() == "set" ? "" : OneLine(event.cause()) + ", ")
                << (event.canary().empty() ? "" : OneLine(event.canary()) + ", ")
                << Word(event.source()) << ", " << OneLine(event.actor())
                << (event.reason().empty() ? "" : ": " + OneLine(event.reason())) << ")"
                << (event.evidence().empty() ? "" : "  " + OneLine(event.evidence())) << std::endl;
}

class LeversWatch final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--since-epoch", &since_, "First the events newer than this; 0: only new ones");
    options.Add("--count", &count_, "Stop after so many events or tables; 0: never");
    options.Flag("--events", &events_, "Changes, also while a canary runs");
    options.Add("--every", &every_, "Seconds from one table to the next");
    options.Flag("--heartbeat", &heartbeat_,
                 "Tell the node with every table that the canary's operator is there");
  }

  // A table again and again while a canary runs, else every change. --json is for programs, which
  // get what they ask for: changes, or with --heartbeat one canary a line.
  int Run(const Context& context) override {
    if (!(every_ > 0)) return context.InputError("--every: expected more than 0 seconds");
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    if (events_ || since_ > 0 || (context.json() && !heartbeat_)) return Events(context, **client);
    const auto levers = (*client)->ListLevers(context.Call());
    if (!levers.ok()) return context.NodeError(levers.status(), kLookAtLevers);
    if (!levers->has_canary() || !Lives(levers->canary())) {
      if (heartbeat_) return context.InputError("--heartbeat: no canary runs");
      return Events(context, **client);
    }
    return Tables(context, **client, levers->canary());
  }

 private:
  int Events(const Context& context, client::Client& client) {
    v1::WatchLeversRequest request;
    request.set_since_epoch(since_);
    int64_t seen = 0;
    const auto print = [&](const v1::LeverEvent& event) {
      PrintEvent(context, event);
      return ++seen != count_;
    };
    const absl::Status status = client.WatchLevers(request, print, context.Call());
    return status.ok() ? kOk : context.NodeError(status, kLookAtLevers);
  }

  int Tables(const Context& context, client::Client& client, v1::Canary canary) {
    for (int64_t seen = 1;; ++seen) {
      if (context.json()) {
        context.out() << ToJson(canary).dump() << std::endl;
      } else {
        PrintCanary(context.out(), canary);
        context.out() << std::endl;
      }
      if (!Lives(canary) || seen == count_) return kOk;
      absl::SleepFor(absl::Seconds(every_));
      if (absl::Status s = Refresh(context, client, canary); !s.ok()) {
        return context.NodeError(s, kLookAtLevers);
      }
    }
  }

  absl::Status Refresh(const Context& context, client::Client& client, v1::Canary& canary) const {
    if (heartbeat_) {
      v1::HeartbeatCanaryRequest beat;
      beat.set_name(canary.name());
      auto answer = client.HeartbeatCanary(beat, context.Call());
      if (answer.ok()) {
        canary = *std::move(answer);
        return absl::OkStatus();
      }
      // One that is over is shown as such.
      if (!absl::IsFailedPrecondition(answer.status())) return answer.status();
    }
    auto levers = client.ListLevers(context.Call());
    if (!levers.ok()) return levers.status();
    if (!levers->has_canary() || levers->canary().name() != canary.name()) {
      return absl::NotFoundError(canary.name() +
                                 " is gone: another one runs, or the node restarted");
    }
    canary = std::move(*levers->mutable_canary());
    return absl::OkStatus();
  }

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
