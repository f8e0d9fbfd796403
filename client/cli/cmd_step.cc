// fulcrum step: decode steps of a whole model, how long each phase of them takes, and what ran.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/lever_set.h"
#include "client/cli/sample_stats.h"
#include "client/cli/step_options.h"
#include "client/cli/step_run.h"
#include "client/cli/table.h"

namespace fulcrum::cli {
namespace {

struct Row {
  std::string name, tiers;
  size_t calls = 0;
  std::vector<double> wall = {}, kernel = {};  // seconds, one a step
};

class StepCommand final : public Command {
 public:
  void Declare(Options& options) override {
    workload_.Declare(options);
    options.Add("--steps", &steps_, "Steps that are measured");
    options.Add("--warmup", &warmup_, "Steps before them");
    options.Add("--levers", &levers_, "LEVER=VALUE; ... for the time of the run");
  }

  int Run(const Context& context) override {
    absl::Status status = workload_.Check();
    if (status.ok() && (steps_ < 1 || warmup_ < 0)) {
      status = absl::InvalidArgumentError("--steps: expected at least 1; --warmup: at least 0");
    }
    auto values = ParseLeverValues(levers_);
    status.Update(values.status());
    if (!status.ok()) return context.InputError(status);
    const auto ready = workload_.Open(context);
    if (!ready.ok()) return context.NodeError(ready.status());
    std::vector<LeverSetting> settings = {{.name = "step", .values = *std::move(values)}};
    auto loan = LeverLoan::Take(*ready->node, settings);
    if (!loan.ok()) return context.NodeError(loan.status(), kLookAtLevers);
    const Interrupt interrupt;
    status = loan->Apply(settings[0]).status();
    std::vector<StepSample> samples;
    for (int i = 0; status.ok() && i < warmup_ + steps_ && !interrupt.asked(); ++i) {
      auto sample = RunStep(*ready->node, ready->plan.calls, workload_.rows());
      status = sample.status();
      if (status.ok() && i >= warmup_) samples.push_back(*std::move(sample));
    }
    const absl::Status back = loan->GiveBack();
    if (!status.ok()) {
      // Both are told: levers that stay turned matter beyond this run.
      if (!back.ok()) context.NodeError(back, kLookAtLevers);
      return context.NodeError(status);
    }
    if (!samples.empty()) Report(context, *ready, samples);
    if (!back.ok()) return context.NodeError(back, kLookAtLevers);
    if (!interrupt.asked()) return kOk;
    return context.NodeError(absl::CancelledError(
        absl::StrFormat("asked to stop after %d of %d steps", samples.size(), steps_)));
  }

 private:
  static std::vector<Row> Rows(const StepOptions::Ready& ready,
                               const std::vector<StepSample>& samples) {
    std::vector<Row> rows;
    const auto add = [&](Row row, const std::function<StepTimes(const StepSample&)>& times) {
      for (const StepSample& sample : samples) {
        row.wall.push_back(times(sample).wall);
        row.kernel.push_back(times(sample).kernel);
      }
      rows.push_back(std::move(row));
    };
    for (const Phase phase : PhasesOf(ready.plan.calls)) {
      Row row{.name = std::string(Name(phase)),
              .tiers = TiersOf(ready.plan.calls, samples.back(), phase)};
      for (const DecodeCall& call : ready.plan.calls) row.calls += call.phase == phase;
      add(std::move(row), [&](const StepSample& sample) { return sample.of(phase); });
    }
    add({.name = "step", .tiers = "", .calls = ready.plan.calls.size()},
        [](const StepSample& sample) { return sample.whole; });
    return rows;
  }

  void Report(const Context& context, const StepOptions::Ready& ready,
              const std::vector<StepSample>& samples) const {
    std::set<uint64_t> epochs;
    int shared = 0;
    for (const StepSample& sample : samples) {
      epochs.insert(sample.epochs.begin(), sample.epochs.end());
      shared += sample.shared_launches;
    }
    const std::vector<Row> rows = Rows(ready, samples);
    if (context.json()) {
      Json json = workload_.ToJson(ready);
      json["steps"] = samples.size();
      json["lever_epochs"] = epochs;
      json["shared_launches"] = shared;
      for (const Row& row : rows) {
        Json& out = json["phases"][row.name];
        out = {{"tiers", row.tiers}, {"calls", row.calls}};
        for (const auto& [what, q] : {std::pair("p50", 0.5), {"p90", 0.9}, {"p99", 0.99}}) {
          out["seconds"][what] = Quantile(row.wall, q);
          out["kernel_seconds"][what] = Quantile(row.kernel, q);
        }
      }
      Print(context.out(), json);
      return;
    }
    context.out() << workload_.Describe(ready) << "; " << samples.size() << " steps\n";
    Table table({"PHASE", "CALLS", "p50 ms", "p90 ms", "p99 ms", "KERNEL p50 ms", "TIERS"});
    const auto ms = [](const std::vector<double>& seconds, double q) {
      return absl::StrFormat("%.3f", Quantile(seconds, q) * 1e3);
    };
    for (const Row& row : rows) {
      table.Row({row.name, absl::StrCat(row.calls), ms(row.wall, 0.5), ms(row.wall, 0.9),
                 ms(row.wall, 0.99), ms(row.kernel, 0.5), row.tiers});
    }
    table.Print(context.out());
    if (epochs.size() > 1) context.out() << "levers changed while the steps ran\n";
    if (shared > 0) {
      context.out() << shared << " calls shared their launch with other callers' rows\n";
    }
  }

  StepOptions workload_;
  int steps_ = 20, warmup_ = 2;
  std::string levers_;
};

}  // namespace

std::unique_ptr<Command> MakeStep() { return std::make_unique<StepCommand>(); }

}  // namespace fulcrum::cli
