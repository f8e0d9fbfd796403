// fulcrum ladder: which arm a shard gets at every M, and why the others do not run.
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

class Ladder final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--shard", &shard_, "models/MODEL/shards/SHARD");
    options.Required();
    options.Add("--policy", &policy_, "exact, batch_invariant, fastest (default: the node's)");
    options.Add("--step", &step_, "decode (default) or prefill");
  }

  int Run(const Context& context) override {
    const auto policy = ParsePolicyWord(policy_);
    if (!policy.ok()) return context.InputError(policy.status());
    const auto step = ParseStepWord(step_);
    if (!step.ok()) return context.InputError(step.status());
    v1::ExplainLadderRequest request;
    request.set_shard(shard_);
    request.set_policy(*policy);
    request.set_step(*step);
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto response = (*client)->ExplainLadder(request, context.Call());
    if (!response.ok()) return context.NodeError(response.status());
    if (context.json()) {
      Json choices = Json::array();
      for (const v1::LadderChoice& choice : response->choices()) choices.push_back(ToJson(choice));
      Print(context.out(), {{"shard", response->shard()},
                            {"lever_epoch", response->lever_epoch()},
                            {"choices", std::move(choices)}});
      return kOk;
    }
    context.out() << response->shard() << ", lever epoch " << response->lever_epoch() << "\n";
    Table table({"M", "ARM", "CLASS", "BLOCKS", "WAVES", "READS", "PIECES", "DECLINED"});
    for (const v1::LadderChoice& choice : response->choices()) {
      std::vector<std::string> declined;
      for (const v1::Rung& rung : choice.rungs()) {
        if (rung.verdict() != "runs" && rung.verdict() != "below") {
          declined.push_back(absl::StrCat(rung.arm(), " (", rung.verdict(),
                                          rung.verdict() == "lever" ? " " + rung.lever() : "",
                                          ")"));
        }
      }
      table.Row({absl::StrCat(choice.rows()), choice.arm(), Word(choice.numerics()),
                 absl::StrCat(choice.blocks()), absl::StrFormat("%.2f", choice.waves()),
                 HumanBytes(static_cast<double>(choice.expected_bytes())),
                 absl::StrJoin(choice.pieces(), "+"), absl::StrJoin(declined, ", ")});
    }
    table.Print(context.out());
    return kOk;
  }

 private:
  std::string shard_, policy_, step_;
};

}  // namespace

std::unique_ptr<Command> MakeLadder() { return std::make_unique<Ladder>(); }

}  // namespace fulcrum::cli
