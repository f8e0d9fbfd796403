// fulcrum levers list, set, watch.
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

template <typename Response>
void PrintLevers(const Context& context, const Response& response) {
  if (context.json()) {
    Json levers = Json::array();
    for (const v1::Lever& lever : response.levers()) levers.push_back(ToJson(lever));
    Print(context.out(), {{"epoch", response.epoch()}, {"levers", std::move(levers)}});
    return;
  }
  context.out() << "epoch " << response.epoch() << "\n";
  Table table({"LEVER", "VALUE", "SOURCE", "LATCHED", "BITS", "ALLOWED", "WHAT IT DOES"});
  for (const v1::Lever& lever : response.levers()) {
    std::string allowed;
    for (const std::string& choice : lever.choices()) {
      absl::StrAppend(&allowed, allowed.empty() ? "" : "|", choice);
    }
    if (lever.kind() == v1::LEVER_KIND_NUMBER) {
      allowed = absl::StrCat(lever.min(), "..", lever.max());
    }
    table.Row({lever.name(), lever.value(), Word(lever.source()), lever.latched() ? "yes" : "no",
               lever.changes_bits() ? "may change" : "same", allowed, lever.description()});
  }
  table.Print(context.out());
}

class LeversList final : public Command {
 public:
  void Declare(Options&) override {}
  int Run(const Context& context) override {
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto response = (*client)->ListLevers(context.Call());
    if (!response.ok()) return context.NodeError(response.status(), kLookAtLevers);
    PrintLevers(context, *response);
    return kOk;
  }
};

class LeversSet final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("assignments", &assignments_,
                "NAME=VALUE ..., all or none: m16_tc=attn_qkv:one_pass,ffn_down:m16");
    options.Required();
    options.Add("--reason", &reason_, "Kept in the event");
    options.Add("--based-on-epoch", &based_on_epoch_,
                "Refuse (ABORTED) if another change came in between; 0: no check");
    options.Flag("--validate-only", &validate_only_, "Check, change nothing");
  }

  int Run(const Context& context) override {
    v1::SetLeversRequest request;
    for (const std::string& text : assignments_) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0) {
        return context.InputError(
            absl::StrCat("levers set: expected NAME=VALUE, got \"", text, "\""));
      }
      v1::LeverAssignment* const assignment = request.add_assignments();
      assignment->set_name(text.substr(0, equals));
      assignment->set_value(text.substr(equals + 1));
    }
    request.set_reason(reason_);
    request.set_based_on_epoch(based_on_epoch_);
    request.set_validate_only(validate_only_);
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto response = (*client)->SetLevers(request, context.Call());
    if (!response.ok()) return context.NodeError(response.status(), kLookAtLevers);
    PrintLevers(context, *response);
    return kOk;
  }

 private:
  std::vector<std::string> assignments_;
  std::string reason_;
  uint64_t based_on_epoch_ = 0;
  bool validate_only_ = false;
};

class LeversWatch final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--since-epoch", &since_, "First the events newer than this; 0: only new ones");
    options.Add("--count", &count_, "Stop after so many events; 0: never");
  }

  // With --json one line an event, so that a reader need not wait for the end.
  int Run(const Context& context) override {
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    v1::WatchLeversRequest request;
    request.set_since_epoch(since_);
    int64_t seen = 0;
    const auto print = [&](const v1::LeverEvent& event) {
      const Json json = ToJson(event);
      if (context.json()) {
        context.out() << json.dump() << std::endl;
      } else {
        context.out() << json["time"].get<std::string>() << "  epoch " << event.epoch() << "  "
                      << event.lever() << ": " << event.from() << " -> " << event.to() << "  ("
                      << Word(event.source()) << ", " << event.actor()
                      << (event.reason().empty() ? "" : ": " + event.reason()) << ")" << std::endl;
      }
      return ++seen != count_;
    };
    const absl::Status status = (*client)->WatchLevers(request, print, context.Call());
    return status.ok() ? kOk : context.NodeError(status, kLookAtLevers);
  }

 private:
  uint64_t since_ = 0;
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeLeversList() { return std::make_unique<LeversList>(); }
std::unique_ptr<Command> MakeLeversSet() { return std::make_unique<LeversSet>(); }
std::unique_ptr<Command> MakeLeversWatch() { return std::make_unique<LeversWatch>(); }

}  // namespace fulcrum::cli
