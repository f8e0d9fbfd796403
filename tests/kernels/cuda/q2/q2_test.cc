// The q2_0 arms at sizes that fill a device, which the contract's small shapes do not: every output
// of every arm at many M has the CPU arm's bits, whatever the output memory held.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "tests/kernels/cuda/cuda_cases.h"
#include "tests/support/shapes.h"

namespace fulcrum::cuda {
namespace {

using test::MemoryWeight;
using test::Shape;
using test::WeightKind;

Bytes RunArm(Backend& backend, const Arm& arm, const ResidentWeight& weight,
             std::span<const uint16_t> x, int m) {
  absl::StatusOr<Bytes> out = test::RunPoisoned(backend, arm, weight, x, m, DType::kF32);
  EXPECT_TRUE(out.ok()) << arm.name << ", M = " << m << ": " << out.status();
  return out.ok() ? *std::move(out) : Bytes();
}

class Q2OnCuda : public testing::Test {
 protected:
  Q2OnCuda() : cuda_(Open()), cpu_(test::OpenBackend("cpu")) {}

  // All 32 rows on the CPU; a row's bits do not depend on the batch.
  Bytes Expected(const MemoryWeight& source, std::span<const uint16_t> x) {
    const auto weight = cpu_.backend->Upload(source);
    EXPECT_TRUE(weight.ok()) << weight.status();
    if (!weight.ok()) return {};
    return RunArm(*cpu_.backend, ExactArm(*cpu_.backend, 32, Step::kDecode, WeightFormat::kQ2_0),
                  **weight, x, 32);
  }

  test::BackendUnderTest cuda_, cpu_;
};

TEST_F(Q2OnCuda, EveryArmHasTheCpusBitsAtFullSize) {
  FULCRUM_NEED_BACKEND(cuda_);
  // At K = 17408 activations, at 65536 tiles too, are more than shared memory holds.
  for (const Shape& shape :
       {Shape{2050, 2560}, Shape{4097, 2560}, Shape{4097, 2624}, Shape{2050, 5120, 128},
        Shape{12288, 2560}, Shape{4097, 5120}, Shape{640, 17408}, Shape{2050, 64},
        Shape{530, 1024, 128}, Shape{530, 1088}, Shape{40, 65536}}) {
    for (const WeightKind kind : {WeightKind::kUniformCodes, WeightKind::kZeroBlocks}) {
      const MemoryWeight source = test::RandomQ2(shape.n, shape.k, kind, 9, shape.q2_block);
      const auto weight = cuda_.backend->Upload(source);
      ASSERT_TRUE(weight.ok()) << weight.status();
      const std::vector<uint16_t> x = Gaussian(32, shape.k);
      const Bytes expected = Expected(source, x);
      ASSERT_FALSE(expected.empty());
      for (const Arm& arm : cuda_.backend->ladder()) {
        if (arm.format != WeightFormat::kQ2_0 || !test::Pinned(*cuda_.backend, arm)) continue;
        for (const int m : {1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 31, 32}) {
          if (m > arm.m_max) continue;
          const Bytes found = RunArm(*cuda_.backend, arm, **weight, x, m);
          ASSERT_EQ(found.size(), static_cast<size_t>(m * shape.n) * 4);
          ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0)
              << arm.name << " " << source.spec().name << " " << shape.n << " x " << shape.k
              << ", M = " << m << ", element "
              << test::FirstDifference(found, std::span(expected).first(found.size()), DType::kF32);
        }
      }
    }
  }
}

// One scale, one code and one activation changed by the least: each must be seen, in its column or
// row alone.
TEST_F(Q2OnCuda, TheLeastChangesAreSeenWhereTheyBelong) {
  FULCRUM_NEED_BACKEND(cuda_);
  constexpr int64_t kN = 50, kK = 5184;
  MemoryWeight source = test::RandomQ2(kN, kK, WeightKind::kUniformCodes, 4);
  const std::vector<uint16_t> x = Gaussian(32, kK);
  const auto right = cuda_.backend->Upload(source);
  ASSERT_TRUE(right.ok()) << right.status();
  const int64_t row_bytes = source.spec().row_bytes();
  for (const Arm& arm : cuda_.backend->ladder()) {
    if (arm.format != WeightFormat::kQ2_0 || !test::Pinned(*cuda_.backend, arm)) continue;
    const int m = std::min(arm.m_max, 32);
    const Bytes before = RunArm(*cuda_.backend, arm, **right, x, m);
    for (const int64_t n : {int64_t{0}, int64_t{9}, int64_t{31}, kN - 1}) {
      for (const int64_t byte : {int64_t{0}, int64_t{2}, row_bytes - 18, row_bytes - 1}) {
        MemoryWeight changed = source;
        changed.mutable_rows()[static_cast<size_t>(n * row_bytes + byte)] ^= std::byte{0x40};
        const auto weight = cuda_.backend->Upload(changed);
        ASSERT_TRUE(weight.ok()) << weight.status();
        const Bytes after = RunArm(*cuda_.backend, arm, **weight, x, m);
        ASSERT_EQ(after.size(), before.size());
        bool seen = false;
        for (int64_t i = 0; i < m * kN; ++i) {
          const bool same = std::memcmp(&after[static_cast<size_t>(i) * 4],
                                        &before[static_cast<size_t>(i) * 4], 4) == 0;
          seen = seen || !same;
          ASSERT_TRUE(same || i % kN == n) << arm.name << ": column " << i % kN;
        }
        EXPECT_TRUE(seen) << arm.name << ": column " << n << ", byte " << byte;
      }
    }
  }
}

}  // namespace
}  // namespace fulcrum::cuda
