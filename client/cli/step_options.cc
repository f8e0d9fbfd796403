// See step_options.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/step_options.h"

#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/local_step_node.h"
#include "client/cli/remote_step_node.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {

void StepOptions::Declare(Options& options, const std::string& policy_help) {
  options.Add("--model", &model_,
              "models/MODEL of the node; in process: small, qwen-27b, or qwen-27b:0-3,lm_head");
  options.Add("--batch", &rows_, "Rows of every call, 1..32");
  options.Add("--layers", &layers_, "The first so many layers (0: all)");
  options.Flag("--no-lm-head", &no_lm_head_, "The step ends with the last layer");
  options.Choice("--policy", &policy_, {"exact", "batch_invariant", "fastest"}, policy_help);
  options.Add("--seed", &seed_, "Of the activations");
  options.Flag("--in-process", &in_process_, "On made-up weights in this process, without gRPC");
  options.Choice("--backend", &backend_, {"auto", "cpu", "cuda"}, "In process: what computes");
  options.Add("--threads", &threads_, "In process: CPU threads (0: all)");
}

absl::Status StepOptions::Check() const {
  if (rows_ < 1 || rows_ > kMaxDecodeRows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--batch: expected 1..%d rows, got %d", kMaxDecodeRows, rows_));
  }
  if (layers_ < 0 || threads_ < 0) {
    return absl::InvalidArgumentError("--layers and --threads: expected at least 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<StepOptions::Ready> StepOptions::Open(const Context& context) const {
  Ready ready;
  if (in_process_) {
    auto local = MakeLocalStepNode(
        {.model = model_,
         .backend = backend_,
         .threads = threads_,
         .progress = [&](const std::string& line) { context.err() << line << std::endl; }});
    if (!local.ok()) return local.status();
    ready.node = *std::move(local);
  } else {
    auto client = context.Connect();
    if (!client.ok()) return client.status();
    const double timeout = context.globals().timeout_s;
    ready.node = MakeRemoteStepNode(*std::move(client), context.globals().target, model_,
                                    absl::Seconds(timeout > 0 ? timeout : 60));
  }
  const auto weights = ready.node->Weights();
  if (!weights.ok()) return weights.status();
  ready.plan = PlanDecodeStep(*weights, {.layers = layers_, .lm_head = !no_lm_head_});
  if (ready.plan.calls.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "model \"", model_, "\" has no projections of a decode step; a node's shards of it are ",
        "named models/", model_, "/shards/layers.N..."));
  }
  if (absl::Status s = ready.node->Prepare(
          ready.plan.calls, {.rows = rows_, .policy = *ParsePolicy(policy_), .seed = seed_});
      !s.ok()) {
    return s;
  }
  return ready;
}

std::string StepOptions::Describe(const Ready& ready) const {
  return absl::StrFormat(
      "%s: %d rows, %d layers, %d calls a step, %s, %s%s", model_, rows_, ready.plan.layers,
      ready.plan.calls.size(), policy_, ready.node->Description(),
      ready.plan.left_out.empty()
          ? ""
          : absl::StrFormat("; %d weights have no place in a step", ready.plan.left_out.size()));
}

Json StepOptions::ToJson(const Ready& ready) const {
  return {{"model", model_},
          {"rows", rows_},
          {"layers", ready.plan.layers},
          {"calls", ready.plan.calls.size()},
          {"policy", policy_},
          {"node", ready.node->Description()},
          {"left_out", ready.plan.left_out}};
}

}  // namespace fulcrum::cli
