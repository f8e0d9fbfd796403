// CUDA devices as backends: the weights that are resident on a device, and its launches on one
// compute stream. device_query.h finds devices; slot.h has a launch's buffers and copies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/host/stream.h"
#include "kernels/cuda/host/wait.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/runtime/cuda_weight.h"
#include "kernels/cuda/runtime/scrubber.h"
#include "kernels/cuda/runtime/slot.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/runtime/timeline.h"
#include "kernels/cuda/w8a8/cublaslt.h"

namespace fulcrum::cuda {

// How Run executes a launch. The defaults are the fastest by measurement; other values are for
// benchmarks and tests.
struct RunOptions {
  enum class Way {
    kFastest,     // by bytes and by the launches in flight; see run.cc
    kDirect,      // copies by kernels on the compute stream, where the launch allows it
    kOverlapped,  // copies by the copy engines beside another slot's kernels
  };
  Way way = Way::kFastest;
  bool graphs = true;
  bool programmatic = true;
  bool host_outputs = true;  // arms store into host memory where that is quicker
  // Making a graph takes 40 us, which it saves in about ten launches.
  int uses_before_graph = 16;
  absl::Duration hang_limit = kHangLimit;
};

class CudaBackend : public Backend {
 public:
  // ordinal: the runtime's number of the device that `info` describes. memory_budget_bytes 0: what
  // is free now, less 1 GiB for slots and for what the driver loads later. w8a8: where the device
  // can run class w8a8, every fp8 weight keeps the rows it reads (its bytes twice) and the device
  // has kCapBlockScaled; without, or on any other device, neither. library: there, the vendor's
  // library is opened too, and the device has kCapLibrary or says in library_missing why not.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Make(int ordinal, const DeviceInfo& info,
                                                           int64_t memory_budget_bytes,
                                                           bool w8a8 = false, bool library = false);
  ~CudaBackend() override;

  std::string_view name() const override { return "cuda"; }
  const DeviceInfo& device() const override { return device_; }
  std::span<const Arm> ladder() const override;

  // Runs every arm that can serve the weight once, so that no call pays for loading a kernel.
  absl::StatusOr<std::shared_ptr<ResidentWeight>> Upload(const WeightSource& source)
      ABSL_LOCKS_EXCLUDED(launch_mutex_) override;
  int64_t ResidentBytes(const WeightSpec& spec) const override {
    return UploadedWeight::Bytes(spec, keeps_rows());
  }

  std::unique_ptr<LaunchSlot> NewSlot() override { return std::make_unique<CudaSlot>(ordinal_); }
  // One slot computes, one copies in, one copies out. With two the device waits for the host.
  int preferred_slots() const override { return 3; }

  // A device that does not answer within RunOptions::hang_limit is given up: INTERNAL, and
  // healthy() is false for good.
  absl::StatusOr<LaunchTimes> Run(LaunchSlot& slot, const Launch& launch)
      ABSL_LOCKS_EXCLUDED(launch_mutex_) override;
  // Not while anything runs.
  void set_run_options(const RunOptions& options) { run_options_ = options; }
  LaunchShape Shape(const Arm& arm, const WeightSpec& spec, int m) const override;
  bool healthy() const override {
    return healthy_.load(std::memory_order_relaxed) && !GivenUp(ordinal_);
  }

  // Runs one arm on the caller's device buffers and waits for it. For tests of strided rows and for
  // benchmarks. Sets args.context; launch.h has the requirements on activations.
  absl::Status RunArm(const Arm& arm, ArmArgs args) ABSL_LOCKS_EXCLUDED(launch_mutex_);

 private:
  CudaBackend(int ordinal, const DeviceInfo& info, bool w8a8);
  bool keeps_rows() const { return (device_.caps & kCapBlockScaled) != 0; }
  absl::Status Open(int64_t memory_budget_bytes, bool library) ABSL_LOCKS_EXCLUDED(launch_mutex_);
  // A library that cannot be opened is not an error: the device has the reason in library_missing.
  void OpenLibrary();

  // Makes the device current on this thread; UNAVAILABLE once it is lost.
  absl::Status Enter();
  // Called after a failed call: marks the backend unhealthy if the device does not answer any more.
  void NoteFailure();

  // run.cc
  bool RunsDirect(const CudaSlot& slot, const Launch& launch, int running) const;
  absl::StatusOr<LaunchTimes> RunDirect(CudaSlot& slot, const Launch& launch)
      ABSL_LOCKS_EXCLUDED(launch_mutex_);
  absl::StatusOr<LaunchTimes> RunOverlapped(CudaSlot& slot, const Launch& launch, int running)
      ABSL_LOCKS_EXCLUDED(launch_mutex_);
  // Null when the launch is better run without one.
  cudaGraphExec_t GraphOf(CudaSlot& slot, const Launch& launch) ABSL_LOCKS_EXCLUDED(launch_mutex_);
  // Copy in, arms, copy out, on the context's stream.
  absl::Status EnqueueDirect(CudaSlot& slot, const Launch& launch, CudaContext& context) const;
  absl::Status EnqueueArms(CudaSlot& slot, const Launch& launch, CudaContext& context) const;
  // Enqueues one arm on the context's stream. The next launch may follow it programmatically if the
  // arm's last kernel is ours. After a failure the workspace is reset before another launch can
  // begin.
  absl::Status EnqueueArm(const Arm& arm, ArmArgs args, CudaContext& context) const;
  // After a failed launch: the slot's buffers are free again, or the device is given up.
  absl::Status AfterFailure(CudaSlot& slot, absl::Status status);

  // warm_up.cc
  absl::Status WarmUp(const CudaWeight& weight) ABSL_LOCKS_EXCLUDED(launch_mutex_);
  absl::Status WarmUpArm(const Arm& arm, ArmArgs args, const Event& done)
      ABSL_LOCKS_EXCLUDED(launch_mutex_);

  const int ordinal_;
  DeviceInfo device_;
  std::atomic<bool> healthy_ = true;
  // Bytes of the weights that are alive. A weight may outlive the backend, so the counter is
  // shared.
  std::shared_ptr<std::atomic<int64_t>> resident_bytes_;
  std::shared_ptr<Scrubber> scrubber_;
  std::unique_ptr<Staging> staging_;
  Stream compute_;
  DeviceBuffer workspace_;
  DeviceBuffer scratch_;
  std::unique_ptr<CublasLt> library_;

  // Held while a launch is enqueued on the compute stream, never while it runs. The stream orders
  // launches; the mutex keeps the pieces of one launch together.
  absl::Mutex launch_mutex_;
  CudaContext context_ ABSL_GUARDED_BY(launch_mutex_);
  RunOptions run_options_;
  bool has_programmatic_ = false;  // the device can launch programmatically
  std::atomic<int> running_ = 0;   // launches between Run's begin and end
  Timeline timeline_;
  // Format, N, K and whether there are NaN codes: the choice of a kernel depends on nothing else.
  using KernelShape = std::tuple<WeightFormat, int64_t, int64_t, bool>;
  std::set<KernelShape> warm_ ABSL_GUARDED_BY(launch_mutex_);
};

// One backend a device that an arm of this build can run on. NOT_FOUND when there is none: the
// message says whether the machine has no device, or its devices have no arm. Options as in Make
// and in BackendOptions.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeCudaBackends(int64_t memory_budget_bytes,
                                                                       bool w8a8 = false,
                                                                       uint32_t without_caps = 0,
                                                                       bool library = false);

}  // namespace fulcrum::cuda
