// What a launch of a CUDA arm works with: the device's stream and scratch, and the resident weight.
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

// ArmArgs::context of every CUDA arm: the device's one compute stream and its scratch. The backend
// makes it. The stream orders the launches of a context.
struct CudaContext {
  cudaStream_t stream = nullptr;
  int sm_count = 0;
  bool has_wgmma = false;        // kCapSm90a
  bool has_bulk_copies = false;  // kCapBulkCopy
  int max_shared_bytes = 0;      // of one block, opt-in
  // Device memory in which thread blocks exchange partial sums: kWorkspaceBytes or more. Every byte
  // is kEmptySentinelByte between launches. An arm that leaves any other value there breaks the
  // next launch.
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  // Device memory for anything else. Its content is undefined between launches.
  std::byte* scratch = nullptr;
  int64_t scratch_bytes = 0;
  // Null without kCapLibrary. One launch of the stream at a time uses its workspace.
  CublasLt* library = nullptr;
  // True when the operation before this launch on the stream is a kernel of ours and the device has
  // programmatic launches (sm_90 and later). Then a kernel may be launched programmatically if it
  // calls WaitOnDependentGrids (grid_dependency.cuh) before it reads activations or touches the
  // workspace. A kernel that is launched programmatically must always make that call.
  bool programmatic = false;
};
// A context that describes the device of that ordinal; stream and memory are null.
absl::StatusOr<CudaContext> ContextOf(int ordinal, const DeviceInfo& device);

// The byte that fills the workspace between launches. A word of it is a NaN that no kernel computes
// (kEmptySentinel in workspace.cuh).
inline constexpr unsigned char kEmptySentinelByte = 0xff;
inline constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
inline constexpr int64_t kScratchBytes = int64_t{32} << 20;

// Arms read activations in whole blocks. So args.activations is 16-byte aligned, the pitch is a
// multiple of 8 elements and at least K padded to 128, and the elements from K to there are zero.
constexpr int64_t PaddedK(int64_t k) { return numerics::Blocks(k) * numerics::kBlockK; }

// The output may be pinned host memory (slot.h says when). An arm stores each element once and
// reads none.

// A weight on the device, as arms see it. Immutable after Upload.
class CudaWeight : public ResidentWeight {
 public:
  const std::byte* codes() const { return codes_; }
  const float* scales() const { return scales_; }  // null for bf16
  // fp8 [N][blocks * 128] as in the file, for class w8a8. Null unless the upload asked for it.
  const std::byte* rows() const { return rows_; }
  const TileLayout& layout() const { return layout_; }
  bool has_nan() const { return has_nan_; }  // fp8: some code is NaN (the shard allows it)
  // Unique in the process, which an address is not. Captured launches are found by it.
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
