// The CPU as a backend: resident weights in host memory, launches on a fixed pool of threads, one
// launch at a time. The arms are arms.def's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "kernels/cpu/launch.h"

namespace fulcrum::cpu {

class CpuBackend : public Backend {
 public:
  // threads 0: one per core this process may use. memory_budget_bytes 0: what the
  // process may use (host_memory.h).
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Make(int threads, int64_t memory_budget_bytes);

  std::string_view name() const override { return "cpu"; }
  const DeviceInfo& device() const override { return device_; }
  std::span<const Arm> ladder() const override;

  absl::StatusOr<std::shared_ptr<ResidentWeight>> Upload(const WeightSource& source)
      ABSL_LOCKS_EXCLUDED(launch_mutex_) override;
  int64_t ResidentBytes(const WeightSpec& spec) const override { return CpuWeight::Bytes(spec); }

  std::unique_ptr<LaunchSlot> NewSlot() override;
  int preferred_slots() const override { return 1; }

  absl::StatusOr<LaunchTimes> Run(LaunchSlot& slot, const Launch& launch)
      ABSL_LOCKS_EXCLUDED(launch_mutex_) override;
  LaunchShape Shape(const Arm& arm, const WeightSpec& spec, int m) const override;
  bool healthy() const override { return true; }

  // Runs one arm on the caller's own buffers: strided rows, benchmarks. args.context is set here.
  absl::Status RunArm(const Arm& arm, ArmArgs args) ABSL_LOCKS_EXCLUDED(launch_mutex_);

 private:
  CpuBackend(int threads, int64_t memory_budget_bytes);

  DeviceInfo device_;
  ThreadPool pool_;
  // Bytes of the weights that are alive: they give theirs back when destroyed, which may be after
  // the backend itself, hence shared.
  std::shared_ptr<std::atomic<int64_t>> resident_bytes_;
  absl::Mutex launch_mutex_;
  CpuContext context_ ABSL_GUARDED_BY(launch_mutex_);
};

}  // namespace fulcrum::cpu
