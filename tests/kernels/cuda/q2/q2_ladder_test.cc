// Which q2_0 arm the CUDA ladder takes, by lever and by what was measured on the card. Needs no
// device.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kernels/cuda/arms.h"
#include "kernels/cuda/measured.h"
#include "kernels/ladder/ladder.h"

namespace fulcrum::cuda {
namespace {

std::string_view Picked(uint32_t caps, std::string_view warp_rows, std::string_view imma, int m,
                        Step step = Step::kDecode) {
  const LadderQuery query = {.format = WeightFormat::kQ2_0,
                             .family = Family::kAttnQkv,
                             .step = step,
                             .policy = Policy::kBatchInvariant,
                             .device_caps = caps};
  LeverSet levers;
  EXPECT_TRUE(levers.Set("q2_warp_rows", warp_rows).ok());
  EXPECT_TRUE(levers.Set("q2_imma", imma).ok());
  const ClassSet classes = AllowedClasses(Arms(), query, levers);
  EXPECT_EQ(AskedButDeclined(Arms(), query, levers, m) != nullptr,
            imma == "on" && (caps & kCapImma) == 0 &&
                !(warp_rows == "on" && m <= 4 && step == Step::kDecode));
  const Arm* const arm = PickArm(Arms(), query, classes, levers, m);
  return arm == nullptr ? "none" : arm->name;
}

TEST(Q2Ladder, WarpRowsRunsWhereItIsAskedForOrWasMeasuredFaster) {
  constexpr uint32_t kFaster = kCapImma | kCapFasterArms;
  EXPECT_EQ(Picked(kCapImma, "auto", "on", 1), "q2_0_imma");
  EXPECT_EQ(Picked(kFaster, "auto", "on", 1), "q2_0_warp_rows");
  EXPECT_EQ(Picked(kFaster, "auto", "on", kWarpRowsFasterRows), "q2_0_warp_rows");
  EXPECT_EQ(Picked(kFaster, "auto", "on", kWarpRowsFasterRows + 1), "q2_0_imma");
  EXPECT_EQ(Picked(kFaster, "auto", "on", 5), "q2_0_imma");
  EXPECT_EQ(Picked(kFaster, "off", "on", 1), "q2_0_imma");
  EXPECT_EQ(Picked(kCapImma, "on", "on", 4), "q2_0_warp_rows");
  EXPECT_EQ(Picked(kFaster, "on", "on", 1, Step::kPrefill), "q2_0_imma");
}

TEST(Q2Ladder, TheExactLayoutServesEveryMWithoutTensorCores) {
  for (const int m : {1, 4, 5, 8, 9, 32}) {
    EXPECT_EQ(Picked(kCapImma, "off", "off", m), "q2_0_mmvq");
    EXPECT_EQ(Picked(kCapNone, "auto", "on", m), "q2_0_mmvq");
    EXPECT_EQ(Picked(kCapImma, "auto", "on", m), "q2_0_imma");
    EXPECT_EQ(Picked(kCapNone, "auto", "on", 40 * m, Step::kPrefill), "q2_0_mmvq");
  }
}

TEST(Q2Ladder, ACardThatWasNotMeasuredGetsNoGuess) {
  EXPECT_FALSE(WarpRowsMeasuredFaster(""));
  EXPECT_FALSE(WarpRowsMeasuredFaster("A card of tomorrow (sm_130)"));
  EXPECT_TRUE(WarpRowsMeasuredFaster("NVIDIA H200 (sm_90), 132 multiprocessors"));
}

}  // namespace
}  // namespace fulcrum::cuda
