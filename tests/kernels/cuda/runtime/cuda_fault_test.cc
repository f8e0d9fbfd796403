// A kernel that touches memory it must not: the device's context is broken for good, and whatever
// is asked of it afterwards is an error, never a result. Each such device is a process's own.
// Devices that hang are cuda_hang_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/cuda/runtime/cuda_backend.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

using Way = RunOptions::Way;

// Ends the process without the cleaning up that needs the device.
[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(1);
}

// A real arm whose outputs go where no memory is.
const Arm* real = nullptr;
absl::Status StoreNowhere(const ArmArgs& args) {
  ArmArgs astray = args;
  astray.output = reinterpret_cast<std::byte*>(4096);
  return real->run(astray);
}

void ExpectUnavailable(const absl::Status& status, const char* what) {
  if (status.code() != absl::StatusCode::kUnavailable) Fail(what + (": " + status.ToString()));
}

[[noreturn]] void RunAnIllegalAccess(Way way, bool host_outputs) {
  constexpr int kM = 4;
  test::BackendUnderTest cuda = Open();
  auto& backend = static_cast<CudaBackend&>(*cuda.backend);
  const auto weight = backend.Upload(*Synthetic(256, 1280));
  if (!weight.ok()) Fail(weight.status().ToString());
  std::unique_ptr<LaunchSlot> slot = backend.NewSlot();
  const size_t bytes = kM * 256 * 2;
  if (!slot->Reserve(kM * 1280 * 2, std::span(&bytes, 1)).ok()) Fail("no slot");
  backend.set_run_options({.way = way, .host_outputs = host_outputs});
  real = &ExactArm(backend, kM);
  const LaunchTarget right = {real, weight->get()};
  const Launch launch = {.targets = std::span(&right, 1), .m = kM};
  if (const auto ran = backend.Run(*slot, launch); !ran.ok()) Fail(ran.status().ToString());

  Arm astray = *real;
  astray.run = &StoreNowhere;
  const LaunchTarget wrong = {&astray, weight->get()};
  const absl::Status fault =
      backend.Run(*slot, {.targets = std::span(&wrong, 1), .m = kM}).status();
  if (fault.code() != absl::StatusCode::kInternal) Fail("the fault: " + fault.ToString());
  if (backend.healthy()) Fail("still healthy");
  for (int i = 0; i < 3; ++i) ExpectUnavailable(backend.Run(*slot, launch).status(), "a launch");
  ExpectUnavailable(backend.Upload(*Synthetic(256, 1280)).status(), "an upload");
  if ((*weight)->Checksum().ok()) Fail("a checksum of what cannot be read");
  std::_Exit(0);
}

TEST(CudaFaultDeathTest, AfterAnIllegalAccessNothingIsAResult) {
  {
    const test::BackendUnderTest cuda = Open();
    FULCRUM_NEED_BACKEND(cuda);
  }
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const Way way : {Way::kDirect, Way::kOverlapped}) {
    for (const bool host_outputs : {false, true}) {
      EXPECT_EXIT(RunAnIllegalAccess(way, host_outputs), testing::ExitedWithCode(0), "")
          << static_cast<int>(way) << host_outputs;
    }
  }
}

}  // namespace
}  // namespace fulcrum::cuda
