// Copies a weight's rows from their source into device memory through two pinned buffers that are
// filled in turn. Reading the file overlaps the copy and the packing of the piece before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/host/stream.h"
#include "kernels/cuda/layout/layout.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::cuda {

// Rows of one piece: as many groups of 128 as fit into 16 MiB, at least one.
int64_t PieceRows(int64_t row_bytes);

// One a device; uploads take turns.
class Staging {
 public:
  static absl::StatusOr<std::unique_ptr<Staging>> Make(int device);

  // Fills the layout.bytes() bytes at `resident` (device memory) with the weight: codes, padding,
  // scales, and rows where the layout has them. The copy is complete when this returns. After an
  // error nothing writes there any more. Returns whether some fp8 code is NaN.
  absl::StatusOr<bool> Load(const WeightSource& source, const TileLayout& layout,
                            std::byte* resident) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit Staging(int device) : device_(device) {}
  absl::Status Reserve(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Enqueue(const WeightSource& source, const TileLayout& layout, std::byte* resident)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status EnqueuePiece(const WeightSource& source, int64_t row, int64_t count, int turn,
                            std::byte* resident) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int device_;
  absl::Mutex mutex_;
  Stream stream_ ABSL_GUARDED_BY(mutex_);
  Event done_ ABSL_GUARDED_BY(mutex_);
  std::array<PinnedBuffer, 2> read_ ABSL_GUARDED_BY(mutex_);
  std::array<Event, 2> copied_ ABSL_GUARDED_BY(mutex_);  // read_[i] may be filled again
  // One buffer is enough: the stream packs a piece before it copies the next.
  DeviceBuffer rows_ ABSL_GUARDED_BY(mutex_);
  DeviceBuffer found_nan_ ABSL_GUARDED_BY(mutex_);  // one 32-bit word, and its copy
  PinnedBuffer host_nan_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fulcrum::cuda
