// The CPU backend apart from its arithmetic: memory budget, residency, checksums, slots, launches
// of
// several targets, concurrent callers.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/arm_cases.h"
#include "tests/support/random_weights.h"

namespace fulcrum::test {
namespace {

std::unique_ptr<cpu::CpuBackend> NewBackend(int64_t budget = 0) {
  absl::StatusOr<std::unique_ptr<cpu::CpuBackend>> backend = cpu::CpuBackend::Make(2, budget);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

const Arm& ExactArm(const Backend& backend, WeightFormat format) {
  for (const Arm& arm : backend.ladder()) {
    if (arm.format == format && arm.numerics == NumericsClass::kExact) return arm;
  }
  ADD_FAILURE() << "no exact arm for " << Name(format);
  return backend.ladder().front();
}

TEST(CpuBackend, EveryFormatHasAnUngatedExactArmForEveryStepAndM) {
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend();
  for (const WeightFormat format : kAllWeightFormats) {
    const Arm& arm = ExactArm(*backend, format);
    EXPECT_EQ(arm.gate.lever, Lever::kAlwaysOpen);
    for (int m = 1; m <= kMaxDecodeRows; ++m) EXPECT_TRUE(arm.Serves(format, Step::kDecode, m));
    for (const int m : {1, 33, 1000}) EXPECT_TRUE(arm.Serves(format, Step::kPrefill, m));
  }
}

TEST(CpuBackend, ResidentBytesStayWithinThreePercentOfTheFile) {
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend();
  for (const WeightFormat format : kAllWeightFormats) {
    for (const int64_t n : {130, 1024, 17408}) {
      for (const int64_t k : {2560, 2624, 5120, 17408}) {
        const WeightSpec spec{.name = "w", .format = format, .n = n, .k = k};
        if (spec.bytes() < (1 << 20)) continue;
        EXPECT_LE(static_cast<double>(backend->ResidentBytes(spec)),
                  1.03 * static_cast<double>(spec.bytes()))
            << Name(format) << " " << n << "x" << k;
      }
    }
  }
}

TEST(CpuBackend, BudgetRefusesAndIsGivenBack) {
  const MemoryWeight source = RandomFp8(128, 1024, WeightKind::kGaussian, 1);
  const int64_t bytes = NewBackend()->ResidentBytes(source.spec());
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend(bytes + bytes / 2);
  {
    absl::StatusOr<std::shared_ptr<ResidentWeight>> first = backend->Upload(source);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ((*first)->resident_bytes(), bytes);
    const absl::Status refused = backend->Upload(source).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(refused.message().find(source.spec().name), absl::string_view::npos) << refused;
  }
  EXPECT_TRUE(backend->Upload(source).ok());
}

TEST(CpuBackend, WeightsOutliveTheBackend) {
  std::unique_ptr<cpu::CpuBackend> backend = NewBackend();
  absl::StatusOr<std::shared_ptr<ResidentWeight>> weight =
      backend->Upload(RandomBf16(16, 64, WeightKind::kGaussian, 1));
  ASSERT_TRUE(weight.ok());
  backend.reset();
  EXPECT_TRUE((*weight)->Checksum().ok());
}

class FailingSource : public MemoryWeight {
 public:
  using MemoryWeight::MemoryWeight;
  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
    if (row + count > 128) return absl::DataLossError("the file ended");
    return MemoryWeight::ReadRows(row, count, out);
  }
};

TEST(CpuBackend, ErrorsOfTheSourcePassThroughAndKeepNoMemory) {
  const MemoryWeight whole = RandomBf16(200, 512, WeightKind::kGaussian, 1);
  const std::unique_ptr<cpu::CpuBackend> backend =
      NewBackend(cpu::CpuWeight::Bytes(whole.spec()) + 1);
  const FailingSource failing(whole.spec(), {whole.rows().begin(), whole.rows().end()});
  EXPECT_EQ(backend->Upload(failing).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(backend->Upload(whole).ok());
}

TEST(CpuBackend, AnyFlippedBitChangesTheChecksumAndFlippingBackRestoresIt) {
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend();
  for (const WeightFormat format : kAllWeightFormats) {
    absl::StatusOr<std::shared_ptr<ResidentWeight>> weight =
        backend->Upload(RandomWeight(format, 5, 192, WeightKind::kGaussian, 1));
    ASSERT_TRUE(weight.ok()) << weight.status();
    const uint64_t before = *(*weight)->Checksum();
    for (int64_t byte = 0; byte < (*weight)->resident_bytes(); ++byte) {
      const int bit = static_cast<int>(byte % 8);
      ASSERT_TRUE((*weight)->FlipBit(byte, bit).ok());
      ASSERT_NE(*(*weight)->Checksum(), before) << Name(format) << " byte " << byte;
      ASSERT_TRUE((*weight)->FlipBit(byte, bit).ok());
    }
    EXPECT_EQ(*(*weight)->Checksum(), before);
    EXPECT_FALSE((*weight)->FlipBit((*weight)->resident_bytes(), 0).ok());
    EXPECT_FALSE((*weight)->FlipBit(0, 8).ok());
  }
}

TEST(CpuBackend, OneLaunchRunsSeveralTargetsOnTheSameRows) {
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend();
  constexpr int kM = 7;
  constexpr int64_t kK = 576;
  const std::vector<uint16_t> x = RandomActivations(kM, kK, ActivationKind::kGaussian, 2);
  const MemoryWeight q = RandomFp8(96, kK, WeightKind::kGaussian, 1);
  const MemoryWeight k = RandomFp8(33, kK, WeightKind::kGaussian, 2);
  const auto q_weight = *backend->Upload(q), k_weight = *backend->Upload(k);
  const Arm& arm = ExactArm(*backend, WeightFormat::kFp8Block128);
  const std::unique_ptr<LaunchSlot> slot = backend->NewSlot();
  const size_t bytes[] = {kM * 96 * 2, kM * 33 * 2};
  ASSERT_TRUE(slot->Reserve(x.size() * 2, bytes).ok());
  std::memcpy(slot->activations(), x.data(), x.size() * 2);
  const LaunchTarget targets[] = {{&arm, q_weight.get()}, {&arm, k_weight.get()}};
  absl::StatusOr<LaunchTimes> times = backend->Run(*slot, {.targets = targets, .m = kM});
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_GT(times->kernel, 0);
  for (const auto& [index, weight] : {std::pair(0, q_weight), std::pair(1, k_weight)}) {
    absl::StatusOr<std::vector<std::byte>> alone =
        RunPoisoned(*backend, arm, *weight, x, kM, DType::kBf16);
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(std::memcmp(alone->data(), slot->output(static_cast<size_t>(index)), alone->size()),
              0);
  }
}

TEST(CpuBackend, ConcurrentLaunchesDoNotMix) {
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend();
  const MemoryWeight source = RandomQ2(257, 2560, WeightKind::kGaussian, 1);
  const auto weight = *backend->Upload(source);
  const Arm& arm = ExactArm(*backend, WeightFormat::kQ2_0);
  std::vector<std::thread> callers;
  std::vector<int> failures(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      const std::vector<uint16_t> x =
          RandomActivations(5, 2560, ActivationKind::kGaussian, static_cast<uint64_t>(caller));
      const auto first = RunPoisoned(*backend, arm, *weight, x, 5, DType::kF32);
      for (int i = 0; i < 50; ++i) {
        const auto again = RunPoisoned(*backend, arm, *weight, x, 5, DType::kF32);
        if (!first.ok() || !again.ok() || *first != *again) ++failures[static_cast<size_t>(caller)];
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, std::vector<int>(4, 0));
}

TEST(CpuBackend, ShapeCountsEveryPassOverTheWeights) {
  const std::unique_ptr<cpu::CpuBackend> backend = NewBackend();
  const WeightSpec spec{.name = "w", .format = WeightFormat::kFp8Block128, .n = 4096, .k = 512};
  const Arm& arm = ExactArm(*backend, spec.format);
  const Backend::LaunchShape one = backend->Shape(arm, spec, 32);
  EXPECT_EQ(one.bytes, backend->ResidentBytes(spec));
  EXPECT_GE(one.blocks, 2);
  EXPECT_EQ(one.waves, static_cast<double>(one.blocks) / 2);
  EXPECT_EQ(backend->Shape(arm, spec, 33).bytes, 2 * one.bytes);
}

TEST(CpuBackend, FactoryKnowsItsBackends) {
  EXPECT_EQ(CompiledBackends().front(), "cpu");
  absl::StatusOr<std::vector<std::unique_ptr<Backend>>> made =
      MakeBackends("cpu", {.cpu_threads = 3});
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->size(), 1u);
  EXPECT_EQ(made->front()->device().id, "cpu:0");
  EXPECT_EQ(made->front()->device().compute_units, 3);
  EXPECT_EQ(MakeBackends("tpu", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeBackends("cpu", {.cpu_threads = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fulcrum::test
