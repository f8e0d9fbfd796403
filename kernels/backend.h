// A backend: one kind of device (CPU, CUDA), its ladder table, its memory and its launches. The
// scheduler and the service see only this header. backend_factory.h builds the compiled-in ones.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/ladder/arm.h"
#include "kernels/types.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

// What a device's tensor cores were asked when its backend was made: outputs compared with
// kernels/numerics/tensor_core.h, and how many had its bits. No outputs: it has nothing that arms
// of class mma run on.
struct MmaProbe {
  int64_t outputs = 0;
  int64_t agreeing = 0;
  MmaModel model() const {
    if (outputs == 0) return MmaModel::kNotMeasured;
    return agreeing == outputs ? MmaModel::kFollowed : MmaModel::kNotFollowed;
  }
};

struct DeviceInfo {
  std::string id;            // "cpu:0", "cuda:0": the `device` label
  std::string description;   // model name, for humans
  uint32_t caps = 0;         // DeviceCap bits
  int compute_units = 0;     // SMs, or CPU threads used for compute
  int64_t memory_bytes = 0;  // budget for resident weights, 0 = not limited
  int64_t l2_bytes = 0;      // last-level cache
  MmaProbe mma_probe = {};
  std::string library_missing = {};  // why kCapLibrary is not there although it was asked for
};

// A weight resident on a device in the backend's layout. Immutable; freed on destruction, which
// must not happen while a launch uses it (shared_ptr ownership by the shard store keeps that).
class ResidentWeight {
 public:
  virtual ~ResidentWeight() = default;
  const WeightSpec& spec() const { return spec_; }
  int64_t resident_bytes() const { return resident_bytes_; }
  // Checksum over the resident bytes, read back from the device: the slow scrub compares it with
  // the value at load. Any single flipped bit changes it.
  virtual absl::StatusOr<uint64_t> Checksum() const = 0;
  // Test hook for planted faults: flips one bit of the resident bytes. Used by fault tests only.
  virtual absl::Status FlipBit(int64_t byte_offset, int bit) = 0;

 protected:
  ResidentWeight(WeightSpec spec, int64_t bytes) : spec_(std::move(spec)), resident_bytes_(bytes) {}
  WeightSpec spec_;
  int64_t resident_bytes_ = 0;
};

// One weight of a launch: which arm runs it and where its rows go.
struct LaunchTarget {
  const Arm* arm = nullptr;
  const ResidentWeight* weight = nullptr;
};

// A batch ready to run: shared activations (BF16, in the slot), one output per target.
struct Launch {
  std::span<const LaunchTarget> targets;
  int m = 0;
  DType output_type = DType::kBf16;
};

// Wall times of one launch, seconds. On CPU the copies are 0.
struct LaunchTimes {
  double copy_in = 0;
  double kernel = 0;
  double copy_out = 0;
};

// Buffers for one batch in flight: the executor gathers rows into activations() and scatters rows
// out of output(i). Host memory (pinned on CUDA), reused, filled in ahead so that a warm call takes
// no page faults. Not thread-safe: one executor thread owns a slot at a time.
class LaunchSlot {
 public:
  virtual ~LaunchSlot() = default;
  // Grows the buffers if needed: `activation_bytes` for the activations and `output_bytes[i]` for
  // target i. RESOURCE_EXHAUSTED when memory cannot be had.
  virtual absl::Status Reserve(size_t activation_bytes, std::span<const size_t> output_bytes) = 0;
  virtual uint16_t* activations() = 0;           // BF16 [m, K], tightly packed
  virtual std::byte* output(size_t target) = 0;  // [m, N_target], tightly packed, output_type
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  // "cpu", "cuda"
  virtual const DeviceInfo& device() const = 0;
  virtual std::span<const Arm> ladder() const = 0;  // top rung first

  // Copies the weight into device memory in the resident layout, padded as the contract says.
  // RESOURCE_EXHAUSTED beyond the memory budget; errors of the source pass through.
  virtual absl::StatusOr<std::shared_ptr<ResidentWeight>> Upload(const WeightSource& source) = 0;
  // Bytes Upload would keep resident, without loading.
  virtual int64_t ResidentBytes(const WeightSpec& spec) const = 0;

  virtual std::unique_ptr<LaunchSlot> NewSlot() = 0;
  // How many slots keep this device busy (its launch slots).
  virtual int preferred_slots() const = 0;

  // Runs the batch in `slot` and blocks until outputs are in host memory. Called by several slot
  // threads at once; the backend orders them on the device. A non-OK status means no output is
  // valid; INTERNAL from a sticky device error also makes healthy() false for good.
  virtual absl::StatusOr<LaunchTimes> Run(LaunchSlot& slot, const Launch& launch) = 0;

  // Grid of a launch for ExplainLadder: blocks, waves and expected bytes read, 0 where unknown.
  struct LaunchShape {
    int64_t blocks = 0;
    double waves = 0;
    int64_t bytes = 0;
  };
  virtual LaunchShape Shape(const Arm& arm, const WeightSpec& spec, int m) const = 0;

  virtual bool healthy() const = 0;
};

}  // namespace fulcrum
