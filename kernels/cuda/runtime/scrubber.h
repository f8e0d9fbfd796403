// Checksums of device memory for the slow scrub, and flipped bits for fault tests. Uses a stream of
// its own, so that neither launches nor uploads wait for a scrub.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/host/stream.h"

namespace fulcrum::cuda {

// One for each device, shared with its weights, which may outlive the backend. Thread-safe.
class Scrubber {
 public:
  static absl::StatusOr<std::shared_ptr<Scrubber>> Make(int device);

  // The checksum (checksum.h) of `bytes` bytes of device memory.
  absl::StatusOr<uint64_t> Checksum(const std::byte* data, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Flips one bit of one byte of device memory.
  absl::Status Flip(std::byte* at, int bit) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit Scrubber(int device) : device_(device) {}

  const int device_;
  absl::Mutex mutex_;
  Stream stream_ ABSL_GUARDED_BY(mutex_);
  Event done_ ABSL_GUARDED_BY(mutex_);
  DeviceBuffer sum_ ABSL_GUARDED_BY(mutex_);   // one word
  PinnedBuffer host_ ABSL_GUARDED_BY(mutex_);  // one word
};

}  // namespace fulcrum::cuda
