// fulcrum levers list and set, the latter also for a share of traffic.
// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "client/cli/canary_view.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

// First in the output: what follows looks as after a change.
constexpr char kNothingChanged[] = "valid; nothing was changed\n";
constexpr char kValidatedOnly[] = "validated_only";

template <typename Response>
void PrintLevers(const Context& context, const Response& response, bool validated_only = false) {
  if (context.json()) {
    Json levers = Json::array();
    for (const v1::Lever& lever : response.levers()) levers.push_back(ToJson(lever));
    Json json = {{"epoch", response.epoch()}, {"levers", std::move(levers)}};
    if (validated_only) json[kValidatedOnly] = true;
    if constexpr (std::is_same_v<Response, v1::ListLeversResponse>) {
      if (response.has_canary()) json["canary"] = ToJson(response.canary());
      if (response.has_traffic()) json["traffic"] = ToJson(response.traffic());
    }
    Print(context.out(), json);
    return;
  }
  if (validated_only) {
    context.out() << kNothingChanged << "epoch " << response.epoch() << " would be:\n";
  } else {
    context.out() << "epoch " << response.epoch() << "\n";
  }
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

void PrintCanaryLine(const Context& context, const v1::ListLeversResponse& response) {
  if (!response.has_canary() || context.json()) return;
  const v1::Canary& canary = response.canary();
  context.out() << canary.name() << " " << Word(canary.state()) << ": "
                << OneLine(canary.evidence()) << "\n";
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
    if (response->has_traffic() && !context.json()) {
      PrintSeen(context.out(), response->traffic(), v1::CANARY_UNIT_CLIENT);
    }
    PrintCanaryLine(context, *response);
    return kOk;
  }
};

class LeversSet final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("assignments", &assignments_,
                "NAME=VALUE ..., all or none: m16_tc=attn_qkv:one_pass,ffn_down:m16");
    options.Required();
    options.Text("--reason", &reason_, "Kept in the event");
    options.Add("--based-on-epoch", &based_on_epoch_,
                "Refuse (ABORTED) if another change came in between; 0: no check");
    options.Flag("--validate-only", &validate_only_, "Check, change nothing");
    canary_.Declare(options);
  }

  int Run(const Context& context) override {
    v1::SetLeversRequest request;
    for (const std::string& text : assignments_) {
      if (absl::Status s = CheckUtf8("NAME=VALUE", text); !s.ok()) return context.InputError(s);
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0) {
        return context.InputError(
            absl::StrCat("levers set: expected NAME=VALUE, got \"", text, "\""));
      }
      v1::LeverAssignment* const assignment = request.add_assignments();
      assignment->set_name(text.substr(0, equals));
      assignment->set_value(text.substr(equals + 1));
    }
    if (absl::Status s = CheckUtf8("--reason", reason_); !s.ok()) return context.InputError(s);
    if (absl::Status s = canary_.Check(); !s.ok()) return context.InputError(s);
    if (canary_.asked()) return StartCanary(context, request);
    request.set_reason(reason_);
    request.set_based_on_epoch(based_on_epoch_);
    request.set_validate_only(validate_only_);
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto response = (*client)->SetLevers(request, context.Call());
    if (!response.ok()) return context.NodeError(response.status(), kLookAtLevers);
    PrintLevers(context, *response, validate_only_);
    return kOk;
  }

 private:
  int StartCanary(const Context& context, const v1::SetLeversRequest& assignments) {
    v1::StartCanaryRequest request;
    *request.mutable_assignments() = assignments.assignments();
    if (absl::Status s = canary_.Fill(&request); !s.ok()) return context.InputError(s);
    request.set_reason(reason_);
    request.set_based_on_epoch(based_on_epoch_);
    request.set_validate_only(validate_only_);
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto canary = (*client)->StartCanary(request, context.Call());
    if (!canary.ok()) return context.NodeError(canary.status(), kLookAtLevers);
    if (validate_only_) {
      Validated(context, *canary);
    } else if (context.json()) {
      Print(context.out(), ToJson(*canary));
    } else {
      PrintCanary(context.out(), *canary);
    }
    return kOk;
  }

  // Without what only a canary that runs has.
  static void Validated(const Context& context, const v1::Canary& canary) {
    if (!context.json()) {
      context.out() << kNothingChanged;
      PrintCanaryPlan(context.out(), canary);
      return;
    }
    Json json = {{kValidatedOnly, true}};
    json.update(ToJson(canary));
    for (const char* running :
         {"name", "state", "start_time", "end_time", "evidence", "evidence_since", "restarts",
          "restart_count", "control_side", "canary_side", "comparisons"}) {
      json.erase(running);
    }
    Print(context.out(), json);
  }

  std::vector<std::string> assignments_;
  CanaryOptions canary_;
  std::string reason_;
  uint64_t based_on_epoch_ = 0;
  bool validate_only_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeLeversList() { return std::make_unique<LeversList>(); }
std::unique_ptr<Command> MakeLeversSet() { return std::make_unique<LeversSet>(); }

}  // namespace fulcrum::cli
