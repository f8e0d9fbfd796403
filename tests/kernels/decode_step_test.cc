// The order of a decode step, for the synthetic models and for names as a node lists them.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/decode_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/weights/synthetic.h"

namespace fulcrum {
namespace {

using ::testing::ElementsAre;

std::vector<StepWeight> WeightsOf(std::string_view model) {
  std::vector<StepWeight> out;
  const auto weights = SyntheticModel(model, 1);
  EXPECT_TRUE(weights.ok()) << weights.status();
  for (const NamedWeight& weight : *weights) {
    const WeightSpec& spec = weight.source->spec();
    out.push_back({"models/m/shards/" + weight.shard, weight.family, spec.n, spec.k});
  }
  // A node lists by name; the order must not come from the list.
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

std::vector<std::string> Leaves(const DecodeCall& call) {
  std::vector<std::string> out;
  for (const StepWeight& weight : call.weights) {
    out.push_back(weight.name.substr(weight.name.rfind('/') + 1));
  }
  return out;
}

TEST(DecodeStep, SiblingsShareACallAndDependentCallsFollow) {
  const DecodeStepPlan plan = PlanDecodeStep(WeightsOf("qwen-27b"), {.layers = 4});
  EXPECT_EQ(plan.layers, 4);
  ASSERT_EQ(plan.calls.size(), 4u * 4 + 1);
  EXPECT_THAT(Leaves(plan.calls[0]), ElementsAre("layers.0.ssm_in"));
  EXPECT_THAT(Leaves(plan.calls[1]), ElementsAre("layers.0.ssm_out"));
  EXPECT_THAT(Leaves(plan.calls[2]), ElementsAre("layers.0.ffn_gate", "layers.0.ffn_up"));
  EXPECT_THAT(Leaves(plan.calls[3]), ElementsAre("layers.0.ffn_down"));
  EXPECT_THAT(Leaves(plan.calls[12]),
              ElementsAre("layers.3.attn_k", "layers.3.attn_q", "layers.3.attn_v"));
  EXPECT_THAT(Leaves(plan.calls[13]), ElementsAre("layers.3.attn_o"));
  EXPECT_EQ(plan.calls[13].k, 6144);
  EXPECT_EQ(plan.calls[13].phase, Phase::kAttention);
  EXPECT_THAT(Leaves(plan.calls[16]), ElementsAre("lm_head"));
  EXPECT_EQ(plan.calls[16].layer, -1);
  EXPECT_TRUE(plan.left_out.empty());
}

TEST(DecodeStep, AllLayersInTheirOrder) {
  const DecodeStepPlan plan = PlanDecodeStep(WeightsOf("qwen-27b"), {.lm_head = false});
  EXPECT_EQ(plan.layers, 64);
  EXPECT_EQ(plan.calls.size(), 64u * 4);
  std::map<Phase, int> calls;
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    ++calls[plan.calls[i].phase];
    if (i > 0) {
      EXPECT_LE(plan.calls[i - 1].layer, plan.calls[i].layer) << "layer 10 follows layer 9";
    }
    for (const StepWeight& weight : plan.calls[i].weights) {
      EXPECT_EQ(weight.k, plan.calls[i].k);
    }
  }
  EXPECT_EQ(calls[Phase::kSsm], 48 * 2);
  EXPECT_EQ(calls[Phase::kAttention], 16 * 2);
  EXPECT_EQ(calls[Phase::kFfn], 64 * 2);
}

TEST(DecodeStep, SharedExpertsDownFollowsItsGateAndUp) {
  const DecodeStepPlan plan = PlanDecodeStep(WeightsOf("small"), {});
  ASSERT_EQ(plan.calls.size(), 4u + 4 + 1);
  EXPECT_THAT(Leaves(plan.calls[6]),
              ElementsAre("layers.1.shared_expert_gate", "layers.1.shared_expert_up"));
  EXPECT_THAT(Leaves(plan.calls[7]), ElementsAre("layers.1.shared_expert_down"));
  EXPECT_THAT(plan.left_out, ElementsAre("models/m/shards/layers.0.adapter",
                                         "models/m/shards/layers.0.adapter_wide"));
}

TEST(DecodeStep, NamesWithoutALayerAreNoPartOfTheStack) {
  const std::vector<StepWeight> weights = {{"layers.x.attn_o", Family::kAttnO, 8, 8},
                                           {"layers.7", Family::kAttnO, 8, 8},
                                           {"attn_o", Family::kAttnO, 8, 8}};
  EXPECT_TRUE(PlanDecodeStep(weights, {}).calls.empty());
}

}  // namespace
}  // namespace fulcrum
