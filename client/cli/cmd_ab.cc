// fulcrum ab: what lever sets do to the decode step of a model, on a running node or in process.
// SPDX-License-Identifier: Apache-2.0
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/ab_report.h"
#include "client/cli/ab_run.h"
#include "client/cli/ab_split.h"
#include "client/cli/canary_loan.h"
#include "client/cli/canary_view.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/lever_set.h"
#include "client/cli/sample_stats.h"
#include "client/cli/step_options.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

class AbCommand final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--sets", &texts_,
                "NAME:LEVER=VALUE; ... repeatable: each against the first; \"NAME:\" is as it is");
    options.Required();
    options.Choice(
        "--by", &by_, {"round", "batch"},
        "round: levers are turned for everybody, set after set; batch: the second of two "
        "sets is a canary of half of the batches of FASTEST calls");
    workload_.Declare(options, "Of every call (batch_invariant; by batch: fastest)");
    options.Add("--rounds", &ab_.rounds,
                "Measured steps of each set, at least 6 (by batch: replies of each call)");
    options.Add("--settle", &ab_.settle,
                "Steps after each turn that are not measured (by batch: before all, or more, until "
                "half of the replies are of either set)");
    options.Flag("--control", &control_, "The first set against itself, before all else");
  }

  int Run(const Context& context) override {
    std::vector<LeverSetting> settings;
    if (absl::Status s = Check(settings); !s.ok()) return context.InputError(s);
    if (workload_.policy().empty())
      workload_.set_policy(by_batch() ? "fastest" : "batch_invariant");
    ab_.rows = workload_.rows();
    if (by_batch()) return RunByBatch(context, settings);
    const auto ready = workload_.Open(context);
    if (!ready.ok()) return context.NodeError(ready.status());
    auto loan = LeverLoan::Take(*ready->node, settings);
    if (!loan.ok()) return context.NodeError(loan.status(), kLookAtLevers);
    const Interrupt interrupt;
    ab_.stop = [&] { return interrupt.asked(); };
    const absl::Status status = Measure(context, *ready, *loan, settings);
    const absl::Status back = loan->GiveBack();
    return Ended(context, status, back);
  }

 private:
  // Both are told: levers that stay turned matter beyond this run.
  static int Ended(const Context& context, const absl::Status& status, const absl::Status& back) {
    int exit = kOk;
    for (const absl::Status& s : {status, back}) {
      if (!s.ok()) exit = context.NodeError(s, kLookAtLevers);
    }
    return exit;
  }

  absl::Status Check(std::vector<LeverSetting>& settings) const {
    if (absl::Status s = workload_.Check(); !s.ok()) return s;
    if (ab_.rounds < kMinPairs || ab_.settle < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--rounds: expected at least %d, with fewer no interval holds; --settle: at least 0",
          kMinPairs));
    }
    for (const std::string& text : texts_) {
      auto setting = ParseLeverSetting(text);
      if (!setting.ok()) return setting.status();
      settings.push_back(*std::move(setting));
    }
    if (by_batch()) return CheckByBatch(settings);
    if (settings.size() > 1 || control_) return absl::OkStatus();
    return absl::InvalidArgumentError("--sets: expected at least two, or one with --control");
  }

  bool by_batch() const { return by_ == "batch"; }

  absl::Status CheckByBatch(const std::vector<LeverSetting>& settings) const {
    const auto bad = [](const std::string& text) {
      return absl::InvalidArgumentError("--by batch: " + text);
    };
    if (settings.size() != 2) {
      return bad(
          absl::StrFormat("expected two --sets, got %d: a canary has one side beside what is live",
                          settings.size()));
    }
    if (control_) return bad("--control: a canary of what is live anyway would change nothing");
    if (workload_.in_process()) {
      return bad("--in-process: a canary shares a node with other callers, here there are none");
    }
    if (!workload_.policy().empty() && workload_.policy() != "fastest") {
      return bad(absl::StrFormat(
          "--policy %s: only calls under fastest may have other bits from batch to batch",
          workload_.policy()));
    }
    return absl::OkStatus();
  }

  int RunByBatch(const Context& context, std::vector<LeverSetting>& settings) const {
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    if (absl::Status s = CanaryLoan::NoneRuns(**client, context.Call()); !s.ok()) {
      return context.NodeError(s, kLookAtLevers);
    }
    const auto ready = workload_.Open(context);
    if (!ready.ok()) return context.NodeError(ready.status());
    auto loan = LeverLoan::Take(*ready->node, settings);
    if (!loan.ok()) return context.NodeError(loan.status(), kLookAtLevers);
    const Interrupt interrupt;
    AbOptions ab = ab_;
    ab.stop = [&] { return interrupt.asked(); };
    // What is live may be the first set already: then no lever is turned for anybody else.
    absl::Status status =
        loan->WasLive(settings[0]) ? absl::OkStatus() : loan->Apply(settings[0]).status();
    if (status.ok())
      status = MeasureByBatch(context, *ready, **client, settings, loan->epoch(), ab);
    const absl::Status back = loan->GiveBack();
    return Ended(context, status, back);
  }

  absl::Status MeasureByBatch(const Context& context, const StepOptions::Ready& ready,
                              client::Client& client, const std::vector<LeverSetting>& settings,
                              uint64_t epoch, const AbOptions& ab) const {
    LeverValues candidate;
    for (const auto& [name, value] : settings[1].values) {
      if (settings[0].values.at(name) != value) candidate[name] = value;
    }
    if (candidate.empty()) {
      return absl::InvalidArgumentError("--by batch: on this node both sets are the same");
    }
    auto canary = CanaryLoan::Start(client, context.Call(), candidate, epoch,
                                    absl::StrCat("`fulcrum ab` measures ", settings[1].name));
    if (!canary.ok()) return canary.status();
    const auto result = RunSplitAb(*ready.node, ready.plan.calls, settings[0], settings[1], ab,
                                   {.epoch_a = canary->canary().control_epoch(),
                                    .epoch_b = canary->canary().epoch(),
                                    .alive = [&] { return canary->Beat(); }});
    const auto found = canary->GiveBack();
    // A canary that is over explains why replies have other epochs.
    if (absl::IsAborted(found.status())) return found.status();
    if (!result.ok()) {
      // Both are told: a canary that stays matters beyond this run.
      if (!found.ok()) context.NodeError(found.status(), kLookAtLevers);
      return result.status();
    }
    if (!found.ok()) return found.status();
    Json json = workload_.ToJson(ready);
    json["by"] = by_;
    json["rounds"] = ab.rounds;
    json["interval"] = "sign test on the samples' ratios, at least 95 %";
    if (!context.json()) {
      context.out()
          << workload_.Describe(ready) << "; " << ab.rounds
          << " replies of each call and set\nA sample of a set is a step put together from "
             "replies of its epoch. CHANGE is the median of the samples' ratios B / A, "
             "less 1; its interval of at least 95 % (sign test) is for one line alone\n";
      PrintTraffic(context.out(), canary->canary());
    }
    Report(context, ready.plan.calls, *result, json);
    json["canary"] = ToJson(*found);
    if (context.json()) {
      Print(context.out(), json);
    } else {
      context.out() << "\nwhat the node compared, kernel stages of all callers' batches:\n";
      PrintCanary(context.out(), *found);
    }
    return absl::OkStatus();
  }

  absl::Status Measure(const Context& context, const StepOptions::Ready& ready, LeverLoan& loan,
                       const std::vector<LeverSetting>& settings) const {
    const std::vector<DecodeCall>& calls = ready.plan.calls;
    Json json = workload_.ToJson(ready);
    json["rounds"] = ab_.rounds;
    json["interval"] = "sign test on the rounds' ratios, at least 95 %";
    if (!context.json()) {
      context.out() << workload_.Describe(ready) << "; " << ab_.rounds
                    << " rounds\nCHANGE is the median of the rounds' ratios B / A, less 1; its "
                       "interval of at least 95 % (sign test) is for one line alone\n";
    }
    if (control_) {
      std::vector<LeverSetting> twice = {settings[0], settings[0]};
      twice[1].name += " again";
      const auto result = RunAb(*ready.node, loan, calls, twice, ab_);
      if (!result.ok()) return result.status();
      if (context.json()) {
        json["control"] = ComparisonJson(calls, result->sides[0], result->sides[1]);
      } else {
        PrintComparison(context.out(), "control: ", calls, result->sides[0], result->sides[1]);
      }
    }
    if (settings.size() > 1) {
      const auto result = RunAb(*ready.node, loan, calls, settings, ab_);
      if (!result.ok()) return result.status();
      Report(context, calls, *result, json);
    }
    if (context.json()) Print(context.out(), json);
    return absl::OkStatus();
  }

  static void Report(const Context& context, const std::vector<DecodeCall>& calls,
                     const AbResult& result, Json& json) {
    json["discarded_rounds"] = result.discarded_rounds;
    json["comparisons"] = Json::array();
    json["sets"] = Json::array();
    for (size_t i = 0; i < result.sides.size(); ++i) {
      const AbSide& side = result.sides[i];
      Json declines = Json::array();
      int shared = 0;
      for (const StepSample& sample : side.samples) shared += sample.shared_launches;
      for (const AbDecline& decline : side.declines) {
        declines.push_back({{"phase", std::string(Name(decline.phase))},
                            {"asked", decline.asked},
                            {"ran", decline.ran},
                            {"weights", decline.weights}});
      }
      json["sets"].push_back({{"name", side.setting.name},
                              {"levers", side.setting.values},
                              {"declines", std::move(declines)},
                              {"shared_launches", shared}});
      if (i > 0) json["comparisons"].push_back(ComparisonJson(calls, result.sides[0], side));
      if (context.json()) continue;
      if (i > 0) PrintComparison(context.out(), "", calls, result.sides[0], side);
      PrintNotes(context.out(), side, shared);
    }
    if (result.discarded_rounds > 0 && !context.json()) {
      context.out() << result.discarded_rounds
                    << " rounds were run again: replies had another lever epoch\n";
    }
  }

  static void PrintNotes(std::ostream& out, const AbSide& side, int shared) {
    for (const AbDecline& decline : side.declines) {
      out << absl::StrFormat("%s: asked but could not run: %s of %s on %d weights, ran %s\n",
                             side.setting.name, decline.asked, Name(decline.phase), decline.weights,
                             decline.ran);
    }
    if (shared > 0) {
      out << side.setting.name << ": " << shared
          << " calls shared their launch with other callers' rows\n";
    }
  }

  StepOptions workload_{""};
  AbOptions ab_;
  std::string by_ = "round";
  std::vector<std::string> texts_;
  bool control_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeAb() { return std::make_unique<AbCommand>(); }

}  // namespace fulcrum::cli
