// fulcrum ladder: which arm a shard gets at every M, and why the others do not run.
// SPDX-License-Identifier: Apache-2.0
#include <ostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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
    options.Add("--rows", &rows_,
                "M to ask about, \"1,33,512\" (default: decode 1 to 32, prefill powers of two)");
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
    if (absl::Status s = ParseRows(&request); !s.ok()) return context.InputError(s);
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    if (rows_.empty() && *step == v1::STEP_PREFILL) {
      const auto node = (*client)->GetNodeInfo(context.Call());
      if (!node.ok()) return context.NodeError(node.status());
      const int most = node->limits().max_prefill_rows();
      for (int m = 1; m < most; m *= 2) request.add_rows(m);
      request.add_rows(most);
    }
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
    PrintText(context.out(), *response);
    return kOk;
  }

 private:
  absl::Status ParseRows(v1::ExplainLadderRequest* request) const {
    if (rows_.empty()) return absl::OkStatus();
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(rows_, ','))) {
      int rows = 0;
      if (!absl::SimpleAtoi(part, &rows) || rows < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("--rows: got \"", rows_, "\"; expected numbers from 1 on: 1,33,512"));
      }
      request->add_rows(rows);
    }
    return absl::OkStatus();
  }

  // Neighbouring M whose line would be the same share one, "5..32".
  static void PrintText(std::ostream& out, const v1::ExplainLadderResponse& response) {
    Table table({"M", "ARM", "CLASS", "BLOCKS", "WAVES", "READS", "PIECES", "DECLINED"});
    std::vector<std::string> line;
    int first = 0, last = 0;
    const auto print = [&] {
      if (line.empty()) return;
      std::vector<std::string> row = {first == last ? absl::StrCat(first)
                                                    : absl::StrCat(first, "..", last)};
      row.insert(row.end(), line.begin(), line.end());
      table.Row(std::move(row));
    };
    for (const v1::LadderChoice& choice : response.choices()) {
      std::vector<std::string> next = Line(choice);
      if (next != line || choice.rows() != last + 1) {
        print();
        line = std::move(next);
        first = choice.rows();
      }
      last = choice.rows();
    }
    print();
    table.Print(out);
  }

  // All columns but M. A batch that runs in one piece shows none.
  static std::vector<std::string> Line(const v1::LadderChoice& choice) {
    std::vector<std::string> declined;
    for (const v1::Rung& rung : choice.rungs()) {
      if (rung.verdict() == "runs" || rung.verdict() == "below") continue;
      declined.push_back(absl::StrCat(rung.arm(), " (", rung.verdict(),
                                      rung.verdict() == "lever" ? " " + rung.lever() : "", ")"));
    }
    return {choice.arm(),
            Word(choice.numerics()),
            absl::StrCat(choice.blocks()),
            absl::StrFormat("%.2f", choice.waves()),
            HumanBytes(static_cast<double>(choice.expected_bytes())),
            choice.pieces_size() > 1 ? absl::StrJoin(choice.pieces(), "+") : "",
            absl::StrJoin(declined, ", ")};
  }

  std::string shard_, policy_, step_, rows_;
};

}  // namespace

std::unique_ptr<Command> MakeLadder() { return std::make_unique<Ladder>(); }

}  // namespace fulcrum::cli
