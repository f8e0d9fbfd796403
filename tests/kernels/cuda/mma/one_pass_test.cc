// The one-pass arms at sizes that fill a device, which the contract's small shapes do not: every
// output equals the class's plain kernel at every M, a sample of them the emulator. And several
// weights in one launch.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include "kernels/cuda/arms.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

const Arm& ArmNamed(std::string_view name) {
  for (const Arm& arm : Arms()) {
    if (arm.name == name) return arm;
  }
  ADD_FAILURE() << "no arm " << name;
  return Arms().front();
}

Bytes RunArm(Backend& backend, const Arm& arm, const ResidentWeight& weight,
             std::span<const uint16_t> x, int m) {
  absl::StatusOr<Bytes> out = test::RunPoisoned(backend, arm, weight, x, m, DType::kF32);
  EXPECT_TRUE(out.ok()) << arm.name << ", M = " << m << ": " << out.status();
  return out.ok() ? *std::move(out) : Bytes();
}

struct FullSize {
  int64_t n, k;
};

// One-pass results for M = 1 to 32 against each other and the class's 16-row kernel, whole; 4,096
// outputs of M = 32 against the emulator.
void ExpectOneClass(Backend& backend, const FullSize& size, WeightFormat format,
                    const Arm& one_pass, const Arm* plain) {
  SCOPED_TRACE(testing::Message() << size.n << " x " << size.k << " " << Name(format));
  const Source source = Synthetic(size.n, size.k, format);
  const auto weight = backend.Upload(*source);
  ASSERT_TRUE(weight.ok()) << weight.status();
  const std::vector<uint16_t> x = Gaussian(32, size.k);
  const auto row_bytes = static_cast<size_t>(size.n) * 4;
  const Bytes all = RunArm(backend, one_pass, **weight, x, 32);
  ASSERT_EQ(all.size(), 32 * row_bytes);
  for (const int m : {1, 5, 8, 9, 16, 17, 24, 31}) {
    const Bytes some =
        RunArm(backend, one_pass, **weight, std::span(x).first(static_cast<size_t>(m * size.k)), m);
    ASSERT_EQ(some.size(), static_cast<size_t>(m) * row_bytes);
    EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size()), 0) << "M = " << m;
  }
  for (int half = 0; half < 2 && plain != nullptr; ++half) {
    const Bytes rows = RunArm(backend, *plain, **weight,
                              std::span(x).subspan(static_cast<size_t>(half * 16 * size.k),
                                                   static_cast<size_t>(16 * size.k)),
                              16);
    ASSERT_EQ(rows.size(), 16 * row_bytes);
    EXPECT_EQ(
        std::memcmp(rows.data(), all.data() + static_cast<size_t>(half) * rows.size(), rows.size()),
        0)
        << plain->name << ", half " << half;
  }
  test::Rng rng(7);
  for (int i = 0; i < 4096; ++i) {
    const auto row = static_cast<int64_t>(rng.Below(32)),
               n = static_cast<int64_t>(rng.Below(size.n));
    const auto expected = numerics::ReferenceElement(
        NumericsClass::kMma, *source, n,
        std::span(x).subspan(static_cast<size_t>(row * size.k), static_cast<size_t>(size.k)));
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_EQ(std::memcmp(&*expected, all.data() + (row * size.n + n) * 4, 4), 0)
        << "row " << row << ", column " << n;
  }
}

TEST(OnePass, FullSizesAreOneClass) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  const Arm& one_pass = ArmNamed("w8a16_gemm_m32");
  if (!test::Pinned(*cuda.backend, one_pass)) GTEST_SKIP() << "no tensor cores";
  const Arm& plain = ArmNamed("w8a16_gemm_m16");
  // The model's shapes; N that ends in mid-tile; K with 15 segments and a short last one.
  for (const FullSize& size : {FullSize{17408, 5120}, FullSize{5120, 17408}, FullSize{6144, 5120},
                               FullSize{5120, 6144}, FullSize{1024, 5120}, FullSize{4103, 5096},
                               FullSize{3584, 18944}, FullSize{2056, 4000}, FullSize{640, 18944}}) {
    ExpectOneClass(*cuda.backend, size, WeightFormat::kFp8Block128, one_pass, &plain);
  }
}

TEST(OnePass, FullSizesAreOneClassBf16) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  const Arm& one_pass = ArmNamed("dense_gemm_m16_bf16");
  if (!test::Pinned(*cuda.backend, one_pass)) GTEST_SKIP() << "no tensor cores";
  for (const FullSize& size : {FullSize{8200, 5120}, FullSize{700, 2048}}) {
    ExpectOneClass(*cuda.backend, size, WeightFormat::kBf16, one_pass, nullptr);
  }
}

// Weights of one launch, more of them than one kernel takes, give what each gives alone.
TEST(OnePass, SiblingsGiveWhatTheyGiveAlone) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  Backend& backend = *cuda.backend;
  for (const Arm& arm : backend.ladder()) {
    if (!arm.fuses || !test::Pinned(backend, arm)) continue;
    for (const std::vector<int64_t>& ns :
         {std::vector<int64_t>{6144, 1024, 1024}, std::vector<int64_t>{40, 24, 1000, 16, 72, 8}}) {
      const int64_t k = 5120;
      std::vector<std::shared_ptr<ResidentWeight>> weights;
      std::vector<LaunchTarget> targets;
      std::vector<size_t> bytes;
      for (const int64_t n : ns) {
        auto weight = backend.Upload(*Synthetic(n, k, arm.format, static_cast<uint64_t>(n)));
        ASSERT_TRUE(weight.ok()) << weight.status();
        targets.push_back({&arm, weights.emplace_back(*std::move(weight)).get()});
        bytes.push_back(static_cast<size_t>(32 * n) * 4);
      }
      const std::unique_ptr<LaunchSlot> slot = backend.NewSlot();
      ASSERT_TRUE(slot->Reserve(static_cast<size_t>(32 * k) * 2, bytes).ok());
      for (const int m : {1, 16, 32}) {
        const std::vector<uint16_t> x = Gaussian(m, k);
        std::memcpy(slot->activations(), x.data(), x.size() * 2);
        for (size_t i = 0; i < ns.size(); ++i) test::Poison(slot->output(i), bytes[i]);
        const auto ran =
            backend.Run(*slot, {.targets = targets, .m = m, .output_type = DType::kF32});
        ASSERT_TRUE(ran.ok()) << ran.status();
        for (size_t i = 0; i < ns.size(); ++i) {
          const Bytes alone = RunArm(backend, arm, *weights[i], x, m);
          ASSERT_FALSE(alone.empty());
          EXPECT_EQ(std::memcmp(alone.data(), slot->output(i), alone.size()), 0)
              << arm.name << ", M = " << m << ", weight " << i;
          EXPECT_TRUE(test::IsPoison(slot->output(i) + alone.size(), bytes[i] - alone.size()));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fulcrum::cuda
