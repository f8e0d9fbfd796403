// The CUDA backend's launches apart from their arithmetic: several targets, pieces, slots, callers
// at once, failures; and what is said on a machine without a device. Weights are
// cuda_weight_test.cc's, whether results are right is arm_contract_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/backend_factory.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/device_query.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

using test::RunPoisoned;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;

TEST(MakeCudaBackends, SaysWhatIsMissingAndMakesOneForEachDeviceItCanUse) {
  const auto devices = QueryDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  const auto backends = MakeCudaBackends(0);
  if (!backends.ok()) {
    ASSERT_EQ(backends.status().code(), absl::StatusCode::kNotFound) << backends.status();
    EXPECT_THAT(std::string(backends.status().message()),
                HasSubstr(devices->empty() ? "no CUDA device" : devices->front().id));
    return;
  }
  ASSERT_FALSE(backends->empty());
  for (const std::unique_ptr<Backend>& backend : *backends) {
    EXPECT_EQ(backend->name(), "cuda");
    EXPECT_TRUE(backend->healthy());
    EXPECT_GT(backend->device().memory_bytes, 0);
  }
}

TEST(MakeBackends, CudaIsCompiledInAndAutoTakesItOrFallsBackToTheCpu) {
  EXPECT_THAT(CompiledBackends(), Contains("cuda"));
  const absl::Status cuda = MakeBackends("cuda", {}).status();
  EXPECT_TRUE(cuda.ok() || absl::IsNotFound(cuda)) << cuda;
  const auto backends = MakeBackends("auto", {});
  ASSERT_TRUE(backends.ok()) << backends.status();
  EXPECT_EQ(backends->front()->name(), cuda.ok() ? "cuda" : "cpu");
}

TEST(CudaBackend, OneLaunchRunsSeveralTargetsOnTheSameRows) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  constexpr int kM = 7;
  constexpr int64_t kK = 576;
  const std::vector<uint16_t> x = Gaussian(kM, kK);
  const auto q = cuda.backend->Upload(*Synthetic(96, kK));
  const auto k = cuda.backend->Upload(*Synthetic(33, kK, WeightFormat::kBf16));
  ASSERT_TRUE(q.ok() && k.ok()) << q.status() << k.status();
  const LaunchTarget targets[] = {
      {&ExactArm(*cuda.backend, kM), q->get()},
      {&ExactArm(*cuda.backend, kM, Step::kDecode, WeightFormat::kBf16), k->get()}};
  const std::unique_ptr<LaunchSlot> slot = cuda.backend->NewSlot();
  const size_t bytes[] = {kM * 96 * 4, kM * 33 * 4};
  ASSERT_TRUE(slot->Reserve(x.size() * 2, bytes).ok());
  std::memcpy(slot->activations(), x.data(), x.size() * 2);
  const auto times =
      cuda.backend->Run(*slot, {.targets = targets, .m = kM, .output_type = DType::kF32});
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_THAT((std::vector<double>{times->copy_in, times->kernel, times->copy_out}), Each(Gt(0)));
  for (size_t i = 0; i < 2; ++i) {
    const Bytes alone = RunExact(*cuda.backend, *targets[i].weight, x, kM);
    ASSERT_EQ(alone.size(), bytes[i]);
    EXPECT_EQ(std::memcmp(alone.data(), slot->output(i), alone.size()), 0) << i;
  }
}

// 2560 is padded to nothing, 2500 to 2560: what a slot held before must not be read as padding.
TEST(CudaBackend, ASlotForgetsTheRowsOfALaunchBefore) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  constexpr int kM = 5;
  const auto wide = cuda.backend->Upload(*Synthetic(64, 2560));
  const auto ragged = cuda.backend->Upload(*Synthetic(64, 2500));
  ASSERT_TRUE(wide.ok() && ragged.ok()) << wide.status() << ragged.status();
  const std::vector<uint16_t> x = Gaussian(kM, 2500);
  const Bytes fresh = RunExact(*cuda.backend, **ragged, x, kM);

  const std::unique_ptr<LaunchSlot> slot = cuda.backend->NewSlot();
  const size_t bytes = kM * 64 * 4;
  ASSERT_TRUE(slot->Reserve(kM * 2560 * 2, std::span(&bytes, 1)).ok());
  for (const auto* weight : {wide->get(), ragged->get()}) {
    std::fill_n(slot->activations(), kM * 2560, uint16_t{0x7fff});  // NaN
    if (weight == ragged->get()) std::memcpy(slot->activations(), x.data(), x.size() * 2);
    const LaunchTarget target = {&ExactArm(*cuda.backend, kM), weight};
    const auto times = cuda.backend->Run(
        *slot, {.targets = std::span(&target, 1), .m = kM, .output_type = DType::kF32});
    ASSERT_TRUE(times.ok()) << times.status();
  }
  ASSERT_EQ(fresh.size(), bytes);
  EXPECT_EQ(std::memcmp(fresh.data(), slot->output(0), bytes), 0);
}

TEST(CudaBackend, PrefillInPiecesGivesEachRowWhatItGetsAlone) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  constexpr int kM = 70;
  constexpr int64_t kN = 200, kK = 1100;
  for (const WeightFormat format : {WeightFormat::kFp8Block128, WeightFormat::kBf16}) {
    const auto weight = cuda.backend->Upload(*Synthetic(kN, kK, format));
    ASSERT_TRUE(weight.ok()) << weight.status();
    EXPECT_GT(Pieces(ExactArm(*cuda.backend, kM, Step::kPrefill, format), kM).size(), 1u);
    const std::vector<uint16_t> x = Gaussian(kM, kK);
    const Bytes all = RunExact(*cuda.backend, **weight, x, kM, Step::kPrefill);
    ASSERT_EQ(all.size(), static_cast<size_t>(kM * kN * 4));
    for (int row = 0; row < kM; ++row) {
      const std::span<const uint16_t> own = std::span(x).subspan(static_cast<size_t>(row * kK), kK);
      EXPECT_EQ(RunExact(*cuda.backend, **weight, own, 1, Step::kPrefill),
                Columns(all, kN, row, 0, kN))
          << Name(format) << " row " << row;
    }
  }
}

// `rounds` launches of one slot, compared with the weight's outputs when no other slot ran.
int Differences(Backend& backend, const ResidentWeight& weight, std::span<const uint16_t> x, int m,
                const Bytes& expected, int rounds) {
  int differences = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto out = RunPoisoned(backend, ExactArm(backend, m), weight, x, m, DType::kF32);
    if (!out.ok() || *out != expected) ++differences;
  }
  return differences;
}

TEST(CudaBackend, SlotsOfTwoThreadsAtOnceGiveWhatTheyGiveInTurn) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  const auto weight = cuda.backend->Upload(*Synthetic(1024, 2560));
  ASSERT_TRUE(weight.ok()) << weight.status();
  constexpr int kRows[] = {3, 32};
  std::vector<uint16_t> x[2];
  Bytes expected[2];
  for (size_t i = 0; i < 2; ++i) {
    x[i] = Gaussian(kRows[i], 2560, i + 5);
    expected[i] = RunExact(*cuda.backend, **weight, x[i], kRows[i]);
  }
  int differences[2] = {-1, -1};
  std::vector<std::thread> callers;
  for (size_t i = 0; i < 2; ++i) {
    callers.emplace_back([&, i] {
      differences[i] = Differences(*cuda.backend, **weight, x[i], kRows[i], expected[i], 50);
    });
  }
  // An upload beside live launches, as when a shard is loaded into a serving node.
  const auto other = cuda.backend->Upload(*Synthetic(512, 2560, WeightFormat::kBf16));
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(differences, Each(0));
}

TEST(CudaBackend, ASecondDeviceWorksBesideTheFirst) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  const auto backends = MakeCudaBackends(0);
  ASSERT_TRUE(backends.ok()) << backends.status();
  if (backends->size() < 2) GTEST_SKIP() << "one device";
  const Source source = Synthetic(1024, 2560);
  const std::vector<uint16_t> x = Gaussian(8, 2560);
  std::shared_ptr<ResidentWeight> weights[2];
  Bytes expected;
  for (size_t i = 0; i < 2; ++i) {
    const auto weight = (*backends)[i]->Upload(*source);
    ASSERT_TRUE(weight.ok()) << weight.status();
    weights[i] = *weight;
    if (i == 0) expected = RunExact(*(*backends)[0], *weights[0], x, 8);
  }
  EXPECT_NE((*backends)[0]->device().id, (*backends)[1]->device().id);
  EXPECT_EQ(*weights[0]->Checksum(), *weights[1]->Checksum());
  int differences[2] = {-1, -1};
  std::vector<std::thread> callers;
  for (size_t i = 0; i < 2; ++i) {
    callers.emplace_back(
        [&, i] { differences[i] = Differences(*(*backends)[i], *weights[i], x, 8, expected, 50); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(differences, Each(0));
}

TEST(CudaBackend, ALaunchLargerThanItsSlotIsRefusedAndHarmsNothing) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  const auto weight = cuda.backend->Upload(*Synthetic(4096, 2560));
  ASSERT_TRUE(weight.ok()) << weight.status();
  const std::unique_ptr<LaunchSlot> slot = cuda.backend->NewSlot();
  const LaunchTarget target = {&ExactArm(*cuda.backend, 4), weight->get()};
  const Launch launch = {.targets = std::span(&target, 1), .m = 4};
  EXPECT_EQ(cuda.backend->Run(*slot, launch).status().code(), absl::StatusCode::kInternal);
  const size_t bytes = 4096;  // of 4 * 4096 * 2
  ASSERT_TRUE(slot->Reserve(4 * 2560 * 2, std::span(&bytes, 1)).ok());
  const absl::Status refused = cuda.backend->Run(*slot, launch).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("32768 bytes for output 0"));
  EXPECT_TRUE(cuda.backend->healthy());
}

// Leaves the workspace dirty, as a launch that breaks off between two kernels would.
absl::Status BreakOff(const ArmArgs& args) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  cudaMemsetAsync(context.workspace, 0, static_cast<size_t>(context.workspace_bytes),
                  context.stream);
  return CudaStatus(cudaErrorInvalidConfiguration, "planted");
}
absl::Status ShowWorkspace(const ArmArgs& args) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  return CudaStatus(
      cudaMemcpyAsync(args.output, context.workspace, 4096, cudaMemcpyDefault, context.stream),
      "copy of the workspace");
}

TEST(CudaBackend, AFailedLaunchThatIsNotStickyLeavesTheDeviceHealthyAndTheWorkspaceClean) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  const auto weight = cuda.backend->Upload(*Synthetic(1024, 128));
  ASSERT_TRUE(weight.ok()) << weight.status();
  const std::vector<uint16_t> x = Gaussian(1, 128);
  const Arm breaks = {.name = "breaks", .run = &BreakOff};
  const Arm shows = {.name = "shows", .run = &ShowWorkspace};
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1) {
      const auto failed = RunPoisoned(*cuda.backend, breaks, **weight, x, 1, DType::kF32);
      EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal) << failed.status();
      EXPECT_THAT(std::string(failed.status().message()), HasSubstr("planted"));
    }
    EXPECT_TRUE(cuda.backend->healthy());
    const auto shown = RunPoisoned(*cuda.backend, shows, **weight, x, 1, DType::kF32);
    ASSERT_TRUE(shown.ok()) << shown.status();
    EXPECT_THAT(*shown, Each(std::byte{kEmptySentinelByte})) << turn;
  }
}

}  // namespace
}  // namespace fulcrum::cuda
