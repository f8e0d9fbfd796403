// The set of steps must tell the card's model from its neighbours, in each kind of values it has,
// and be the same everywhere; a device is judged by it.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/step_set.h"

#include <bit>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/tensor_core.h"
#include "kernels/numerics/tensor_core_model.h"

namespace fulcrum::numerics {
namespace {

constexpr int kTileOutputs = StepSet::kRows * StepSet::kColumns;

uint32_t MoreBits(const uint16_t* a, const uint16_t* b, uint32_t c) {
  return tensor_core_model::Step(a, b, c, tensor_core_model::kFractionBits + 1);
}
uint32_t FewerBits(const uint16_t* a, const uint16_t* b, uint32_t c) {
  return tensor_core_model::Step(a, b, c, tensor_core_model::kFractionBits - 1);
}
uint32_t PlainFloat(const uint16_t* a, const uint16_t* b, uint32_t c) {
  auto sum = std::bit_cast<float>(c);
  for (int i = 0; i < 16; ++i) sum = std::fma(Bf16ToF32(a[i]), Bf16ToF32(b[i]), sum);
  return std::bit_cast<uint32_t>(CanonicalF32(sum));
}

// The results of a device that computes as `step` says.
std::vector<uint32_t> Results(const StepSet& set, StepFunction step) {
  std::vector<uint32_t> results;
  for (int i = 0; i < set.tiles * kTileOutputs; ++i) {
    const int row = i / StepSet::kColumns;
    const int column = i / kTileOutputs * StepSet::kColumns + i % StepSet::kColumns;
    uint32_t sum = set.c[static_cast<size_t>(i)];
    for (int k = 0; k < StepSet::kK; k += 16) {
      sum = step(&set.a[static_cast<size_t>(row * StepSet::kK + k)],
                 &set.b[static_cast<size_t>(column * StepSet::kK + k)], sum);
    }
    results.push_back(sum);
  }
  return results;
}

TEST(StepSet, OneSeedIsOneSet) {
  const StepSet first = MakeStepSet(9, 5), again = MakeStepSet(9, 5), other = MakeStepSet(9, 6);
  EXPECT_TRUE(first.a == again.a && first.b == again.b && first.c == again.c);
  EXPECT_FALSE(first.a == other.a || first.b == other.b || first.c == other.c);
  // A value of the set itself, so that a compiler's order of evaluation cannot change it unseen.
  EXPECT_EQ(first.a.front(), 0xc197);
  EXPECT_EQ(first.b.back(), 0xbe8a);
  EXPECT_EQ(first.c[kTileOutputs - 1], 0xc101ebe1u);
}

TEST(StepSet, TheModelAgreesWithItselfAndOtherModelsDoNot) {
  const StepSet set = MakeStepSet(64, 1);
  const int64_t all = set.tiles * kTileOutputs;
  EXPECT_EQ(CountAgreeing(set, Results(set, TensorCoreStep), TensorCoreStep), all);
  for (const StepFunction other : {MoreBits, FewerBits, PlainFloat}) {
    const int64_t agreeing = CountAgreeing(set, Results(set, other), TensorCoreStep);
    EXPECT_LT(agreeing, all - all / 50);
  }
  // One wrong bit is seen.
  std::vector<uint32_t> results = Results(set, TensorCoreStep);
  results[1234] ^= 1;
  EXPECT_EQ(CountAgreeing(set, results, TensorCoreStep), all - 1);
}

// Tiles take turns in their kind: each kind holds what it is for, and alone finds other models out.
TEST(StepSet, EveryKindOfTileHoldsItsValuesAndTellsModelsApart) {
  constexpr int kKinds = 9, kOfEach = 8;
  constexpr int kCancelling = 4, kSubnormal = 5, kTiny = 6, kOverflowing = 7, kNonFinite = 8;
  struct Counts {
    int zero = 0, subnormal = 0, infinite = 0, nan = 0, unlike[3] = {};
  };
  std::vector<Counts> kinds(kKinds);
  const StepSet set = MakeStepSet(kKinds * kOfEach, 1);
  const std::vector<uint32_t> results = Results(set, TensorCoreStep);
  const std::vector<uint32_t> others[] = {Results(set, MoreBits), Results(set, FewerBits),
                                          Results(set, PlainFloat)};
  for (size_t i = 0; i < results.size(); ++i) {
    Counts& counts = kinds[i / kTileOutputs % kKinds];
    const uint32_t magnitude = results[i] & 0x7fffffffu;
    counts.zero += magnitude == 0;
    counts.subnormal += magnitude != 0 && magnitude < 0x00800000u;
    counts.infinite += magnitude == 0x7f800000u;
    counts.nan += results[i] == 0x7fffffffu;
    for (size_t o = 0; o < 3; ++o) counts.unlike[o] += others[o][i] != results[i];
  }
  for (int kind = 0; kind < kKinds; ++kind) {
    const Counts& counts = kinds[static_cast<size_t>(kind)];
    for (const int unlike : counts.unlike) EXPECT_GT(unlike, 0) << kind;
    EXPECT_EQ(counts.nan > 0, kind == kNonFinite) << kind;
    EXPECT_EQ(counts.infinite > 0, kind == kNonFinite || kind == kOverflowing) << kind;
    EXPECT_EQ(counts.subnormal > kOfEach * kTileOutputs / 4, kind == kSubnormal || kind == kTiny)
        << kind;
    EXPECT_LT(counts.infinite + counts.nan, kOfEach * kTileOutputs / 2) << kind;
  }
  EXPECT_GT(kinds[kCancelling].zero, 0);
}

TEST(StepSet, TheSignOfAZeroIsLeftOpenAndNothingElse) {
  StepSet set = MakeStepSet(1, 1);
  for (uint16_t& a : set.a) a = 0;
  for (uint32_t& c : set.c) c = 0;
  std::vector<uint32_t> results(set.c.size(), 0x80000000u);
  EXPECT_EQ(CountAgreeing(set, results, TensorCoreStep), kTileOutputs);
  results[7] = 1;
  EXPECT_EQ(CountAgreeing(set, results, TensorCoreStep), kTileOutputs - 1);
}

}  // namespace
}  // namespace fulcrum::numerics
