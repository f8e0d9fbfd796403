// What one launch of a CUDA arm works with, and what it is told about the weight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/layout/layout.h"
#include "kernels/ladder/arm.h"

namespace fulcrum::cuda {

class CublasLt;

// ArmArgs::context of every CUDA arm: the device's one compute stream and its scratch. Made by the
// backend; launches of one context are ordered by its stream.
struct CudaContext {
  cudaStream_t stream = nullptr;
  int sm_count = 0;
  bool has_wgmma = false;        // kCapSm90a
  bool has_bulk_copies = false;  // kCapBulkCopy
  int max_shared_bytes = 0;      // of one block, opt-in
  // Device scratch, kWorkspaceBytes or more, all of it kEmptySentinelByte between launches: an arm
  // that leaves anything else there breaks the next.
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  // More scratch, whose content nobody relies on.
  std::byte* scratch = nullptr;
  int64_t scratch_bytes = 0;
  // Null without kCapLibrary. Its workspace is used by one launch of the stream at a time.
  CublasLt* library = nullptr;
  // What precedes this launch on the stream is a kernel of ours, on a device with programmatic
  // launches (sm_90 and later): a kernel that waits for it by grid_dependency.cuh before it reads
  // activations or touches the workspace may be launched so. One that is must wait, always.
  bool programmatic = false;
};
// What the device of that ordinal can do, without stream and memory.
absl::StatusOr<CudaContext> ContextOf(int ordinal, const DeviceInfo& device);

// What fills the workspace between launches: the all-ones word, a NaN that no kernel computes.
inline constexpr unsigned char kEmptySentinelByte = 0xff;
inline constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
inline constexpr int64_t kScratchBytes = int64_t{32} << 20;

// The arms read activations in whole blocks: args.activations is 16-byte aligned, the pitch a
// multiple of 8 elements and at least K padded to 128, and what follows a row's K elements up to
// there is zero.
constexpr int64_t PaddedK(int64_t k) { return numerics::Blocks(k) * numerics::kBlockK; }

// The output may be pinned host memory (slot.h says when): an arm stores each element once and
// reads none.

// A weight on the device. Immutable after Upload.
class CudaWeight : public ResidentWeight {
 public:
  const std::byte* codes() const { return codes_; }
  const float* scales() const { return scales_; }  // null for bf16
  // fp8 [N][blocks * 128] as in the file, for class w8a8; null unless it was uploaded for that.
  const std::byte* rows() const { return rows_; }
  const TileLayout& layout() const { return layout_; }
  bool has_nan() const { return has_nan_; }  // fp8: some code is NaN (the shard allows it)
  // Never given twice in a process, as an address can be: captured launches are known by it.
  uint64_t serial() const { return serial_; }

 protected:
  CudaWeight(WeightSpec spec, int64_t bytes) : ResidentWeight(std::move(spec), bytes) {}
  TileLayout layout_;
  const std::byte* codes_ = nullptr;
  const float* scales_ = nullptr;
  const std::byte* rows_ = nullptr;
  bool has_nan_ = false;

 private:
  static inline std::atomic<uint64_t> last_serial_ = 0;
  const uint64_t serial_ = ++last_serial_;
};

}  // namespace fulcrum::cuda
