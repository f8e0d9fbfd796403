// The ways a launch can go (run.cc): whichever it is, the same bytes; graphs of weights that come
// and go; weights that are launched together; every device at once. What needs no device (the cache
// of graphs, the order of launches) runs on any machine. Devices that hang are cuda_hang_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/cuda/runtime/cuda_backend.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/timeline.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Way = RunOptions::Way;

CudaBackend& Cuda(const test::BackendUnderTest& under_test) {
  return static_cast<CudaBackend&>(*under_test.backend);
}

// A slot that is kept, as an executor keeps it, for launches of up to `rows` rows on `n` columns.
struct Caller {
  Caller(Backend& used, int rows, int64_t k, std::vector<int64_t> ns)
      : backend(used), slot(used.NewSlot()) {
    for (const int64_t n : ns) bytes.push_back(static_cast<size_t>(rows * n) * 4);
    const absl::Status reserved = slot->Reserve(static_cast<size_t>(rows * k) * 2, bytes);
    EXPECT_TRUE(reserved.ok()) << reserved;
  }

  // The outputs, one after another; empty when it failed.
  Bytes Run(std::span<const LaunchTarget> targets, std::span<const uint16_t> x, int m) {
    std::memcpy(slot->activations(), x.data(), x.size() * 2);
    for (size_t i = 0; i < targets.size(); ++i) test::Poison(slot->output(i), bytes[i]);
    const auto begin = std::chrono::steady_clock::now();
    const auto ran = backend.Run(*slot, {.targets = targets, .m = m, .output_type = DType::kF32});
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    EXPECT_TRUE(ran.ok()) << ran.status();
    if (!ran.ok()) return {};
    times = *ran;
    EXPECT_GE(std::min({times.copy_in, times.kernel, times.copy_out}), 0);
    EXPECT_LE(times.copy_in + times.kernel + times.copy_out, wall.count());
    Bytes all;
    for (size_t i = 0; i < targets.size(); ++i) {
      const auto count = static_cast<size_t>(m * targets[i].weight->spec().n) * 4;
      all.insert(all.end(), slot->output(i), slot->output(i) + count);
      EXPECT_TRUE(test::IsPoison(slot->output(i) + count, bytes[i] - count)) << "target " << i;
    }
    return all;
  }
  Bytes Run(const ResidentWeight& weight, std::span<const uint16_t> x, int m) {
    const LaunchTarget target = {&ExactArm(backend, m), &weight};
    return Run(std::span(&target, 1), x, m);
  }

  Backend& backend;
  std::unique_ptr<LaunchSlot> slot;
  std::vector<size_t> bytes;
  LaunchTimes times;
};

std::shared_ptr<ResidentWeight> Uploaded(Backend& backend, int64_t n, int64_t k, uint64_t seed) {
  auto weight = backend.Upload(*Synthetic(n, k, WeightFormat::kFp8Block128, seed));
  EXPECT_TRUE(weight.ok()) << weight.status();
  return weight.ok() ? *std::move(weight) : nullptr;
}

TEST(CudaRun, EveryWayGivesTheSameBytes) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  CudaBackend& backend = Cuda(cuda);
  // Whole blocks; rows padded, in whole pieces of 8 and not; output sizes that end within 16 bytes.
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{1024, 2560}, {129, 200}, {67, 1101}};
  for (const auto& [n, k] : kShapes) {
    const auto weight = Uploaded(backend, n, k, 1);
    ASSERT_NE(weight, nullptr);
    for (const int m : {1, 2, 5, 32}) {
      SCOPED_TRACE(testing::Message() << n << " x " << k << " M = " << m);
      const std::vector<uint16_t> x = Gaussian(m, k);
      Caller caller(backend, 32, k, {n});
      backend.set_run_options({.way = Way::kOverlapped, .host_outputs = false});
      const Bytes expected = caller.Run(*weight, x, m);
      EXPECT_GT(caller.times.copy_in, 0);
      EXPECT_GT(caller.times.copy_out, 0);
      backend.set_run_options({.way = Way::kOverlapped});
      EXPECT_EQ(caller.Run(*weight, x, m), expected);
      for (const bool host : {false, true}) {
        backend.set_run_options(
            {.way = Way::kDirect, .graphs = false, .programmatic = false, .host_outputs = host});
        EXPECT_EQ(caller.Run(*weight, x, m), expected) << host;
        EXPECT_GT(caller.times.copy_in, 0);
        EXPECT_GT(caller.times.kernel, 0);
        EXPECT_GT(caller.times.copy_out, 0);
        backend.set_run_options({.way = Way::kDirect, .graphs = false, .host_outputs = host});
        EXPECT_EQ(caller.Run(*weight, x, m), expected) << host;
        backend.set_run_options(
            {.way = Way::kDirect, .host_outputs = host, .uses_before_graph = 1});
        for (int i = 0; i < 3; ++i) EXPECT_EQ(caller.Run(*weight, x, m), expected) << host << i;
        EXPECT_GT(caller.times.kernel, 0);
      }
      EXPECT_EQ(static_cast<CudaSlot&>(*caller.slot).graphs().size(), 2u);
    }
  }
}

TEST(CudaRun, LaunchesOfSeveralTargetsAndPiecesGoEveryWay) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  CudaBackend& backend = Cuda(cuda);
  const std::vector<int64_t> ns = {256, 129, 1024};
  std::vector<std::shared_ptr<ResidentWeight>> weights;
  for (const int64_t n : ns) weights.push_back(Uploaded(backend, n, 1280, 7));
  for (const int m : {3, 32, 70}) {
    const Arm& arm = ExactArm(backend, m, m > kMaxDecodeRows ? Step::kPrefill : Step::kDecode);
    std::vector<LaunchTarget> targets;
    for (const auto& weight : weights) targets.push_back({&arm, weight.get()});
    const std::vector<uint16_t> x = Gaussian(m, 1280);
    Caller caller(backend, m, 1280, ns);
    Bytes expected;
    for (const RunOptions& options :
         {RunOptions{.way = Way::kOverlapped, .host_outputs = false},
          RunOptions{.way = Way::kOverlapped}, RunOptions{.way = Way::kDirect, .graphs = false},
          RunOptions{.way = Way::kDirect, .host_outputs = false, .uses_before_graph = 0},
          RunOptions{.way = Way::kDirect, .uses_before_graph = 0}, RunOptions{}}) {
      backend.set_run_options(options);
      const Bytes out = caller.Run(targets, x, m);
      if (expected.empty()) expected = out;
      EXPECT_EQ(out, expected) << "M = " << m;
    }
    EXPECT_FALSE(expected.empty());
  }
}

TEST(CudaRun, TwoWeightsOfOneShapeInTurnGiveWhatTheyGiveWithoutGraphs) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  CudaBackend& backend = Cuda(cuda);
  const std::vector<uint16_t> x = Gaussian(4, 1280);
  Caller caller(backend, 4, 1280, {256});
  std::shared_ptr<ResidentWeight> weights[2];
  Bytes expected[2];
  backend.set_run_options({.graphs = false});
  for (size_t i = 0; i < 2; ++i) {
    weights[i] = Uploaded(backend, 256, 1280, i + 1);
    expected[i] = caller.Run(*weights[i], x, 4);
  }
  ASSERT_NE(expected[0], expected[1]);
  for (const bool host : {true, false}) {
    backend.set_run_options({.host_outputs = host});
    int differences = 0;
    for (size_t i = 0; i < 10000; ++i) {
      if (caller.Run(*weights[i % 2], x, 4) != expected[i % 2]) ++differences;
    }
    EXPECT_EQ(differences, 0) << host;
  }
}

TEST(CudaRun, AWeightLoadedWhereAnotherWasIsNotRunByTheOthersGraph) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  CudaBackend& backend = Cuda(cuda);
  const std::vector<uint16_t> x = Gaussian(4, 1280);
  Caller caller(backend, 4, 1280, {256});
  const std::byte* address = nullptr;
  int reused = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const auto weight = Uploaded(backend, 256, 1280, seed);
    ASSERT_NE(weight, nullptr);
    const std::byte* const codes = static_cast<const CudaWeight&>(*weight).codes();
    if (codes == address) ++reused;
    address = codes;
    backend.set_run_options({.graphs = false});
    const Bytes expected = caller.Run(*weight, x, 4);
    backend.set_run_options({.way = Way::kDirect, .uses_before_graph = 1});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(caller.Run(*weight, x, 4), expected) << seed;
  }
  EXPECT_GT(reused, 0) << "no weight came where another was: nothing was tested";
}

TEST(CudaRun, ASlotThatGrowsForgetsTheGraphsOfItsOldBuffers) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  CudaBackend& backend = Cuda(cuda);
  backend.set_run_options({.way = Way::kDirect, .uses_before_graph = 0});
  const auto weight = Uploaded(backend, 1024, 1280, 1);
  const std::vector<uint16_t> x = Gaussian(4, 1280);
  Caller caller(backend, 4, 1280, {1024});
  const Bytes expected = caller.Run(*weight, x, 4);
  GraphCache& graphs = static_cast<CudaSlot&>(*caller.slot).graphs();
  EXPECT_EQ(graphs.size(), 1u);
  caller.bytes[0] *= 8;
  ASSERT_TRUE(caller.slot->Reserve(32 * 1280 * 2, caller.bytes).ok());
  EXPECT_EQ(graphs.size(), 0u);
  EXPECT_EQ(caller.Run(*weight, x, 4), expected);
}

// An arm that fuses, on top of one that does not: how many weights it was given, and their
// products.
const Arm* fused_with = nullptr;
std::vector<size_t> fused_counts;
std::vector<bool> fused_programmatic;
absl::Status Fused(const ArmArgs& args) {
  fused_counts.push_back(args.fused.size());
  fused_programmatic.push_back(static_cast<const CudaContext*>(args.context)->programmatic);
  ArmArgs own = args;
  own.fused = {};
  absl::Status status = fused_with->run(own);
  for (const FusedWeight& other : args.fused) {
    own.weight = other.weight;
    own.output = other.output;
    own.output_pitch = other.output_pitch;
    status.Update(fused_with->run(own));
  }
  return status;
}

TEST(CudaRun, TargetsOfOneFusingArmAreOneLaunchAndTheOthersAreNot) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  CudaBackend& backend = Cuda(cuda);
  constexpr int kM = 40;  // prefill: two pieces
  const std::vector<int64_t> ns = {256, 129, 64, 320};
  const Arm& exact = ExactArm(backend, kM, Step::kPrefill);
  fused_with = &exact;
  Arm fusing = exact;
  fusing.fuses = true;
  fusing.run = &Fused;
  std::vector<std::shared_ptr<ResidentWeight>> weights;
  std::vector<LaunchTarget> alone, together;
  for (const int64_t n : ns) {
    weights.push_back(Uploaded(backend, n, 640, static_cast<uint64_t>(n)));
    alone.push_back({&exact, weights.back().get()});
    together.push_back({n == 129 ? &exact : &fusing, weights.back().get()});
  }
  const std::vector<uint16_t> x = Gaussian(kM, 640);
  Caller caller(backend, kM, 640, ns);
  const Bytes expected = caller.Run(alone, x, kM);
  for (const Way way : {Way::kDirect, Way::kOverlapped}) {
    backend.set_run_options({.way = way});
    fused_counts.clear();
    fused_programmatic.clear();
    EXPECT_EQ(caller.Run(together, x, kM), expected);
    EXPECT_THAT(fused_counts, ElementsAre(2, 2));
    const bool has = (backend.device().caps & kCapSm90a) != 0;
    EXPECT_EQ(fused_programmatic.back(), has) << "a kernel of ours came before";
    if (way == Way::kDirect) {
      EXPECT_EQ(fused_programmatic.front(), has);
    }
  }
  backend.set_run_options({.way = Way::kDirect, .programmatic = false});
  fused_programmatic.clear();
  EXPECT_EQ(caller.Run(together, x, kM), expected);
  EXPECT_THAT(fused_programmatic, Each(false));
}

TEST(CudaRun, EveryDeviceAtOnceGivesWhatOneGivesAlone) {
  const test::BackendUnderTest cuda = Open();
  FULCRUM_NEED_BACKEND(cuda);
  const auto backends = MakeCudaBackends(0);
  ASSERT_TRUE(backends.ok()) << backends.status();
  constexpr int kSlots = 4, kRounds = 200;
  const Source source = Synthetic(2048, 2560);
  std::vector<uint16_t> x[kSlots];
  Bytes expected[kSlots];
  std::vector<std::shared_ptr<ResidentWeight>> weights;
  for (const auto& backend : *backends) {
    const auto weight = backend->Upload(*source);
    ASSERT_TRUE(weight.ok()) << weight.status();
    weights.push_back(*weight);
  }
  for (int i = 0; i < kSlots; ++i) {
    x[i] = Gaussian(1 + 8 * i, 2560, static_cast<uint64_t>(i));
    expected[i] = RunExact(*backends->front(), *weights.front(), x[i], 1 + 8 * i);
  }
  for (const Way way : {Way::kFastest, Way::kDirect, Way::kOverlapped}) {
    for (const auto& backend : *backends) {
      static_cast<CudaBackend&>(*backend).set_run_options({.way = way});
    }
    std::atomic<int> differences = 0;
    std::vector<std::thread> threads;
    for (size_t device = 0; device < backends->size(); ++device) {
      for (int i = 0; i < kSlots; ++i) {
        threads.emplace_back([&, device, i] {
          Caller caller(*(*backends)[device], 1 + 8 * i, 2560, {2048});
          for (int round = 0; round < kRounds; ++round) {
            if (caller.Run(*weights[device], x[i], 1 + 8 * i) != expected[i]) ++differences;
          }
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(differences, 0) << static_cast<int>(way);
  }
}

TEST(WritesToHost, LittleAlwaysMuchByAnExactArmAloneNothingByALibrary) {
  constexpr size_t kLittle = 16384, kMuch = 16386;
  const auto arm = [](NumericsClass numerics) { return Arm{.name = "arm", .numerics = numerics}; };
  for (const bool alone : {false, true}) {
    EXPECT_TRUE(WritesToHost(arm(NumericsClass::kExact), kLittle, alone));
    EXPECT_EQ(WritesToHost(arm(NumericsClass::kExact), kMuch, alone), alone);
    EXPECT_TRUE(WritesToHost(arm(NumericsClass::kMma), kLittle, alone));
    EXPECT_FALSE(WritesToHost(arm(NumericsClass::kMma), kMuch, alone));
    EXPECT_FALSE(WritesToHost(arm(NumericsClass::kW8A8), 2, alone));
  }
}

TEST(GraphCache, ForgetsWhatWasUsedLeastRecentlyAndItsCount) {
  GraphCache cache(2);
  cache.Touch({1}).uses = 11;
  cache.Touch({2}).uses = 12;
  EXPECT_EQ(cache.Touch({1}).uses, 11);
  cache.Touch({3}).uses = 13;  // in the place of 2
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.Touch({1}).uses, 11);
  EXPECT_EQ(cache.Touch({3}).uses, 13);
  EXPECT_EQ(cache.Touch({2}).uses, 0);
  EXPECT_EQ(cache.Touch({1}).uses, 0) << "1 was older than 3";
  cache.Clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.Touch({3}).uses, 0);
}

TEST(Timeline, ALaunchBeginsAfterTheOneBeforeItOrWhenItsInputIsThere) {
  using std::chrono::microseconds;
  Timeline timeline;
  const Timeline::Time t{std::chrono::seconds(100)};
  EXPECT_EQ(timeline.Next(), 1u);
  EXPECT_EQ(timeline.Next(), 2u);
  EXPECT_EQ(timeline.Began(1, t, t + microseconds(9)), t);
  EXPECT_EQ(timeline.Began(2, t, t + microseconds(9)), t) << "not known when 1 ended";
  timeline.Ended(1, t + microseconds(5));
  EXPECT_EQ(timeline.Began(2, t, t + microseconds(9)), t + microseconds(5));
  EXPECT_EQ(timeline.Began(2, t + microseconds(7), t + microseconds(9)), t + microseconds(7));
  EXPECT_EQ(timeline.Began(2, t, t + microseconds(4)), t + microseconds(4)) << "seen late";
  EXPECT_EQ(timeline.Began(130, t, t + microseconds(9)), t) << "1 shares the place of 129";
}

}  // namespace
}  // namespace fulcrum::cuda
