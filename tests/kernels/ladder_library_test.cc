// When the ladder takes the vendor's library, and what it takes where there is none, on a
// GPU-shaped table that needs no GPU.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/ladder/ladder.h"
#include "tests/support/cuda_like_ladder.h"

namespace fulcrum {
namespace {

using test::kAllCaps;
using test::kCudaLikeLadder;

TEST(LadderLibrary, IsAskedForByItsOwnChoiceAndItsAbsenceIsSeen) {
  LadderQuery query{.step = Step::kPrefill, .policy = Policy::kFastest, .device_caps = kAllCaps};
  const auto runs = [&query](const LeverSet& levers) {
    return PickArm(kCudaLikeLadder, query, AllowedClasses(kCudaLikeLadder, query, levers), levers,
                   512)
        ->name;
  };
  LeverSet own, library;
  ASSERT_TRUE(own.Set("w8a8_prefill", "all").ok());
  ASSERT_TRUE(library.Set("w8a8_prefill", "all:library").ok());
  EXPECT_EQ(runs(own), "w8a8_blockscaled");
  EXPECT_EQ(runs(library), "w8a8_cublaslt");
  EXPECT_EQ(AskedButDeclined(kCudaLikeLadder, query, library, 512), nullptr);
  // The next rung is our own kernel of the same class.
  query.device_caps = kAllCaps & ~kCapLibrary;
  EXPECT_EQ(runs(own), "w8a8_blockscaled");
  EXPECT_EQ(AskedButDeclined(kCudaLikeLadder, query, own, 512), nullptr);
  EXPECT_EQ(runs(library), "w8a8_blockscaled");
  const Arm* const asked = AskedButDeclined(kCudaLikeLadder, query, library, 512);
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->name, "w8a8_cublaslt");
  // Without the rows that both read, neither.
  query.device_caps = kAllCaps & ~kCapBlockScaled;
  EXPECT_EQ(runs(library), "w8a16_gemv_pieces");
  EXPECT_EQ(AskedButDeclined(kCudaLikeLadder, query, library, 512), asked);
  // FASTEST only.
  query.device_caps = kAllCaps;
  for (const Policy policy : {Policy::kExact, Policy::kBatchInvariant}) {
    query.policy = policy;
    EXPECT_EQ(runs(library), "w8a16_gemv_pieces");
    EXPECT_EQ(AskedButDeclined(kCudaLikeLadder, query, library, 512), nullptr);
  }
}

}  // namespace
}  // namespace fulcrum
