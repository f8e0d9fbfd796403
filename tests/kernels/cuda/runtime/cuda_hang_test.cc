// A device that does not answer: waiting threads return, the device is given up, and nothing that
// would wait for it for good is tried. Each such device is a process's own, since giving up is for
// the rest of the process.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/stream.h"
#include "kernels/cuda/host/wait.h"
#include "kernels/cuda/runtime/cuda_backend.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

using Way = RunOptions::Way;

// Ends the process without the cleaning up that would wait for the device.
[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(1);
}

// Holds the stream up for good, as a kernel that never ends does.
absl::Status HoldUp(cudaStream_t stream) {
  const auto forever = [](void*) {
    while (true) ::pause();
  };
  return CudaStatus(cudaLaunchHostFunc(stream, forever, nullptr), "cudaLaunchHostFunc");
}
absl::Status Hang(const ArmArgs& args) {
  return HoldUp(static_cast<const CudaContext*>(args.context)->stream);
}

std::shared_ptr<ResidentWeight> Uploaded(Backend& backend) {
  auto weight = backend.Upload(*Synthetic(256, 1280));
  if (!weight.ok()) Fail(weight.status().ToString());
  return *std::move(weight);
}

[[noreturn]] void RunOnADeviceThatHangs(Way way) {
  test::BackendUnderTest cuda = Open();
  auto& backend = static_cast<CudaBackend&>(*cuda.backend);
  std::shared_ptr<ResidentWeight> weight = Uploaded(backend);
  std::unique_ptr<LaunchSlot> slot = backend.NewSlot();
  const size_t bytes = 4 * 256 * 2, more = size_t{1} << 22;
  if (!slot->Reserve(4 * 1280 * 2, std::span(&bytes, 1)).ok()) Fail("no slot");
  const Arm hangs = {.name = "hangs", .run = &Hang};
  const LaunchTarget target = {&hangs, weight.get()};
  const Launch launch = {.targets = std::span(&target, 1), .m = 4};
  backend.set_run_options({.way = way, .hang_limit = absl::Milliseconds(50)});
  const absl::Status hung = backend.Run(*slot, launch).status();
  if (hung.code() != absl::StatusCode::kInternal) Fail(hung.ToString());
  if (hung.message().find("stopped answering") == std::string::npos) Fail(hung.ToString());
  if (backend.healthy()) Fail("still healthy");
  const absl::Status later = backend.Run(*slot, launch).status();
  if (later.code() != absl::StatusCode::kUnavailable) Fail(later.ToString());
  const absl::Status grown = slot->Reserve(more, std::span(&more, 1));
  if (grown.code() != absl::StatusCode::kUnavailable) Fail(grown.ToString());
  slot.reset();
  weight.reset();
  cuda.backend.reset();
  std::_Exit(0);
}

[[noreturn]] void WaitForADeviceThatHangs() {
  const test::BackendUnderTest cuda = Open();
  const std::shared_ptr<ResidentWeight> weight = Uploaded(*cuda.backend);
  const auto stream = MakeStream(0, Priority::kBackground);
  const auto event = MakeEvent(0, EventKind::kQuiet);
  if (!stream.ok() || !event.ok() || !HoldUp(stream->get()).ok()) Fail("no stream");
  const absl::Status hung = WaitQuietly(*stream, *event, absl::Milliseconds(50));
  if (hung.code() != absl::StatusCode::kUnavailable) Fail(hung.ToString());
  if (cuda.backend->healthy()) Fail("still healthy");
  const absl::Status later = weight->Checksum().status();
  if (later.code() != absl::StatusCode::kUnavailable) Fail(later.ToString());
  std::_Exit(0);
}

TEST(CudaHangDeathTest, ADeviceThatHangsIsGivenUpAndHoldsNobodyUp) {
  {
    const test::BackendUnderTest cuda = Open();
    FULCRUM_NEED_BACKEND(cuda);
  }
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(RunOnADeviceThatHangs(Way::kDirect), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(RunOnADeviceThatHangs(Way::kOverlapped), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(WaitForADeviceThatHangs(), testing::ExitedWithCode(0), "");
}

TEST(Await, EndsWithTheAnswerTheFaultOrTheLimit) {
  const auto fine = [] { return absl::OkStatus(); };
  int asked = 0;
  EXPECT_TRUE(
      Await([&]() -> absl::StatusOr<bool> { return ++asked == 100; }, fine, absl::Seconds(60))
          .ok());
  EXPECT_EQ(asked, 100);
  const auto never = []() -> absl::StatusOr<bool> { return false; };
  EXPECT_TRUE(absl::IsDeadlineExceeded(Await(never, fine, absl::Milliseconds(10))));
  EXPECT_TRUE(absl::IsDataLoss(Await(
      never, [] { return absl::DataLossError("seen"); }, absl::Seconds(60))));
  EXPECT_TRUE(
      absl::IsAborted(Await([]() -> absl::StatusOr<bool> { return absl::AbortedError("asked"); },
                            fine, absl::Seconds(60))));
}

}  // namespace
}  // namespace fulcrum::cuda
