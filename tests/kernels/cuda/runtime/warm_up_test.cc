// Loading a weight loads every kernel that calls on it may need, so that no call pays for that: the
// first launch at an M takes what later ones take. In a process of its own, since what another test
// has run is warm.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/cuda/runtime/cuda_backend.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

constexpr int64_t kN = 512, kK = 1280;
// A launch of this size takes 15 to 50 us. On an H200 first launches took up to 41 us more than
// later ones, and without the warm-up those of eleven kernels 130 to 600 us more. A few may be
// disturbed.
constexpr auto kLoading = std::chrono::microseconds(100);
constexpr size_t kDisturbed = 3;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(1);
}

std::chrono::nanoseconds Timed(Backend& backend, LaunchSlot& slot, const Launch& launch) {
  const auto begin = std::chrono::steady_clock::now();
  const auto ran = backend.Run(slot, launch);
  if (!ran.ok()) Fail(ran.status().ToString());
  return std::chrono::steady_clock::now() - begin;
}

[[noreturn]] void LaunchEveryArmAtEveryM() {
  test::BackendUnderTest cuda = Open();
  auto& backend = static_cast<CudaBackend&>(*cuda.backend);
  backend.set_run_options({.graphs = false});  // making a graph is not loading a kernel
  const std::unique_ptr<LaunchSlot> slot = backend.NewSlot();
  const size_t bytes = kMaxDecodeRows * kN * 4;
  if (!slot->Reserve(kMaxDecodeRows * kK * 2, std::span(&bytes, 1)).ok()) Fail("no slot");
  bool copies_are_warm = false;
  int launches = 0;
  std::vector<std::string> slow;
  for (const WeightFormat format :
       {WeightFormat::kFp8Block128, WeightFormat::kBf16, WeightFormat::kQ2_0}) {
    const auto weight = backend.Upload(*Synthetic(kN, kK, format));
    if (!weight.ok()) Fail(weight.status().ToString());
    for (const Arm& arm : backend.ladder()) {
      if (arm.format != format || (arm.needs & ~backend.device().caps) != 0) continue;
      const LaunchTarget target = {&arm, weight->get()};
      for (int m = arm.m_min; m <= std::min(arm.m_max, kMaxDecodeRows); ++m) {
        const Launch launch = {.targets = std::span(&target, 1), .m = m};
        // The slot's own first launch is not the weight's.
        if (!copies_are_warm) Timed(backend, *slot, launch);
        copies_are_warm = true;
        const auto first = Timed(backend, *slot, launch);
        std::array<std::chrono::nanoseconds, 5> later;
        for (auto& each : later) each = Timed(backend, *slot, launch);
        std::nth_element(later.begin(), later.begin() + 2, later.end());
        if (first > later[2] + kLoading) {
          slow.push_back(std::string(arm.name) + " at M = " + std::to_string(m) + ": first " +
                         std::to_string(first.count()) + " ns, then " +
                         std::to_string(later[2].count()));
        }
        ++launches;
      }
    }
  }
  if (launches <= 3 * kMaxDecodeRows) Fail("hardly anything ran");
  if (slow.size() > kDisturbed) Fail(absl::StrJoin(slow, "\n"));
  std::_Exit(0);
}

TEST(CudaWarmUpDeathTest, TheFirstLaunchAtEveryMTakesWhatLaterOnesTake) {
  {
    const test::BackendUnderTest cuda = Open();
    FULCRUM_NEED_BACKEND(cuda);
  }
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(LaunchEveryArmAtEveryM(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fulcrum::cuda
