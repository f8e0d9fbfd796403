// The CPU arms give the oracle's bytes whatever the instruction set, the number of threads and the
// pitch of rows. What they must give is arm_contract_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>

#include "hwy/targets.h"
#include "kernels/cpu/arms.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/formats/fp8_block128.h"
#include "tests/support/arm_cases.h"
#include "tests/support/random_weights.h"
#include "tests/support/shapes.h"

namespace fulcrum::test {
namespace {

constexpr int kRows = kMaxDecodeRows;

// Sets the instruction set for one scope.
class ForcedTarget {
 public:
  explicit ForcedTarget(int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~ForcedTarget() { hwy::SetSupportedTargetsForTest(0); }
};

// What the arms are compiled for and this machine has, and the portable version.
std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  const int64_t supported = hwy::SupportedTargets();
  for (const int64_t target : {HWY_AVX3_DL, HWY_AVX3, HWY_AVX2, HWY_NEON, HWY_STATIC_TARGET}) {
    if ((supported & target) != 0 || target == HWY_STATIC_TARGET) targets.push_back(target);
  }
  return targets;
}

std::unique_ptr<cpu::CpuBackend> NewBackend(int threads) {
  absl::StatusOr<std::unique_ptr<cpu::CpuBackend>> backend = cpu::CpuBackend::Make(threads, 0);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

void ExpectReference(Backend& backend, const MemoryWeight& source, std::span<const uint16_t> x,
                     std::span<const int> rows) {
  absl::StatusOr<std::shared_ptr<ResidentWeight>> weight = backend.Upload(source);
  ASSERT_TRUE(weight.ok()) << weight.status();
  const int64_t n = source.spec().n;
  for (const Arm& arm : backend.ladder()) {
    if (arm.format != source.spec().format) continue;
    std::vector<float> reference(static_cast<size_t>(kRows * n));
    ASSERT_TRUE(numerics::ReferenceProduct(arm.numerics, source, 0, n, x, kRows, reference).ok());
    for (const int m : rows) {
      const DType type = m % 2 ? DType::kF32 : DType::kBf16;
      absl::StatusOr<std::vector<std::byte>> actual =
          RunPoisoned(backend, arm, **weight, x, m, type);
      ASSERT_TRUE(actual.ok()) << actual.status();
      const std::vector<std::byte> expected =
          StoredAs(std::span(reference).first(static_cast<size_t>(m * n)), type);
      ASSERT_EQ(FirstDifference(*actual, expected, type), -1)
          << arm.name << " " << source.spec().name << " N=" << n << " K=" << source.spec().k
          << " M=" << m;
    }
  }
}

TEST(CpuIdentity, EveryInstructionSetGivesTheOraclesBytes) {
  EXPECT_GE(Targets().size(), 2u) << "only the portable version ran";
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend(2);
  for (const int64_t target : Targets()) {
    const ForcedTarget forced(target);
    SCOPED_TRACE(hwy::TargetName(target));
    for (const WeightFormat format : kAllWeightFormats) {
      for (const Shape& shape :
           {Shape{45, 2624}, Shape{17, 576}, Shape{1, 64}, Shape{35, 2560, 128}}) {
        for (const WeightKind kind :
             {WeightKind::kUniformCodes, WeightKind::kSubnormalCodes, WeightKind::kWideRange}) {
          const MemoryWeight source =
              RandomWeight(format, shape.n, shape.k, kind, 7, shape.q2_block);
          std::vector<uint16_t> x =
              RandomActivations(kRows, shape.k, ActivationKind::kWideRange, 8);
          x[static_cast<size_t>(3 * shape.k)] = 0x7fc0;  // NaN in row 3
          x[static_cast<size_t>(5 * shape.k)] = 0x7f80;  // infinity in row 5
          ExpectReference(*backend, source, x, std::vector{1, 2, 3, 4, 5, 7, 9, 16, 25, 32});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(CpuIdentity, NanCodesAndScalesFollowTheOracle) {
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend(1);
  const std::vector<uint16_t> x = RandomActivations(kRows, 300, ActivationKind::kGaussian, 8);
  for (const int64_t target : Targets()) {
    const ForcedTarget forced(target);
    SCOPED_TRACE(hwy::TargetName(target));
    for (const float scale : {1.0f, std::bit_cast<float>(0x7f800000u), std::nanf("")}) {
      MemoryWeight source = RandomFp8(140, 300, WeightKind::kUniformCodes, 4);
      source.mutable_rows()[5 * 300 + 17] = std::byte{0x7f};
      source.mutable_rows()[139 * 300 + 299] = std::byte{0xff};
      source.mutable_scales().back() *= scale;
      ExpectReference(*backend, source, x, std::vector{1, 6, 32});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CpuIdentity, AnyNumberOfThreadsGivesTheSameBytes) {
  const Shape shape{700, 2560};
  for (const WeightFormat format : kAllWeightFormats) {
    const MemoryWeight source = RandomWeight(format, shape.n, shape.k, WeightKind::kGaussian, 5);
    const std::vector<uint16_t> x = RandomActivations(kRows, shape.k, ActivationKind::kGaussian, 6);
    for (const Arm& arm : cpu::Arms()) {
      if (arm.format != format) continue;
      std::vector<std::byte> expected;
      for (const int threads : {1, 2, 3, 5}) {
        const std::unique_ptr<cpu::CpuBackend> backend = NewBackend(threads);
        absl::StatusOr<std::shared_ptr<ResidentWeight>> weight = backend->Upload(source);
        ASSERT_TRUE(weight.ok()) << weight.status();
        absl::StatusOr<std::vector<std::byte>> actual =
            RunPoisoned(*backend, arm, **weight, x, 11, DType::kF32);
        ASSERT_TRUE(actual.ok()) << actual.status();
        if (threads == 1) expected = *actual;
        EXPECT_EQ(FirstDifference(*actual, expected, DType::kF32), -1)
            << arm.name << " with " << threads << " threads";
      }
    }
  }
}

TEST(CpuIdentity, StridedRowsAreReadAndWrittenInPlace) {
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend(2);
  for (const WeightFormat format : kAllWeightFormats) {
    const Shape shape{133, 576};
    const int64_t x_pitch = shape.k + 8, out_pitch = shape.n + 61;
    const MemoryWeight source =
        RandomWeight(format, shape.n, shape.k, WeightKind::kUniformCodes, 5);
    absl::StatusOr<std::shared_ptr<ResidentWeight>> weight = backend->Upload(source);
    ASSERT_TRUE(weight.ok()) << weight.status();
    const std::vector<uint16_t> x = RandomActivations(kRows, shape.k, ActivationKind::kGaussian, 6);
    // NaN between the rows: reading it would show.
    std::vector<uint16_t> strided(static_cast<size_t>(kRows * x_pitch), 0x7fc0);
    for (int row = 0; row < kRows; ++row) {
      std::copy_n(x.begin() + row * shape.k, shape.k, strided.begin() + row * x_pitch);
    }
    for (const Arm& arm : cpu::Arms()) {
      if (arm.format != format) continue;
      for (const int m : {1, 3, 16, 32}) {
        for (const DType type : {DType::kF32, DType::kBf16}) {
          const size_t size = SizeOf(type);
          absl::StatusOr<std::vector<std::byte>> packed =
              RunPoisoned(*backend, arm, **weight, x, m, type);
          ASSERT_TRUE(packed.ok()) << packed.status();
          GuardedBuffer out(static_cast<size_t>(m * out_pitch) * size);
          ASSERT_TRUE(backend
                          ->RunArm(arm, {.weight = weight->get(),
                                         .activations = strided.data(),
                                         .activation_pitch = x_pitch,
                                         .output = out.data(),
                                         .output_type = type,
                                         .output_pitch = out_pitch,
                                         .m = m})
                          .ok());
          EXPECT_TRUE(out.GuardsIntact()) << arm.name;
          const size_t row_bytes = static_cast<size_t>(shape.n) * size;
          const size_t gap_bytes = static_cast<size_t>(out_pitch - shape.n) * size;
          for (int row = 0; row < m; ++row) {
            const std::byte* const at = out.data() + static_cast<size_t>(row * out_pitch) * size;
            EXPECT_EQ(
                std::memcmp(at, packed->data() + static_cast<size_t>(row) * row_bytes, row_bytes),
                0)
                << arm.name << " row " << row << " of M = " << m;
            EXPECT_TRUE(IsPoison(at + row_bytes, gap_bytes)) << arm.name << " after row " << row;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fulcrum::test
