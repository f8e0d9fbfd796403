// Buffers of device memory and of pinned host memory, which copy engines reach directly. A buffer
// knows its device, so any thread can free it. Its owner synchronises its use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fulcrum::cuda {

// Makes `device` the current device of this thread and does not restore the one before: restoring
// would open a context on device 0 in every thread. So every public method of the backend begins
// with this call and none relies on the caller's device. UNAVAILABLE for a device that was given
// up.
absl::Status SetDevice(int device);

// Marks a device that stopped answering, for the rest of the process. Its memory is not freed any
// more: freeing waits for the device and would never return.
void GiveUp(int device);
bool GivenUp(int device);

enum class MemoryKind { kDevice, kPinned };

// Move-only. Aligned to 256 bytes.
template <MemoryKind kKind>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer();

  // Empty when bytes is 0. Pinned memory is filled with zeros, so that its pages are resident;
  // device memory is uninitialised. RESOURCE_EXHAUSTED names the bytes and the device.
  static absl::StatusOr<Buffer> Make(int device, size_t bytes);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  int device_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

using DeviceBuffer = Buffer<MemoryKind::kDevice>;
using PinnedBuffer = Buffer<MemoryKind::kPinned>;

// Replaces a buffer that is smaller than `bytes`; its content is lost. The buffer must not be in
// use. Freeing waits for the whole device, so this is for first calls, not for warm ones.
template <MemoryKind kKind>
absl::Status Grow(Buffer<kKind>& buffer, int device, size_t bytes) {
  if (buffer.size() >= bytes) return absl::OkStatus();
  absl::StatusOr<Buffer<kKind>> larger = Buffer<kKind>::Make(device, bytes);
  if (!larger.ok()) return larger.status();
  buffer = *std::move(larger);
  return absl::OkStatus();
}

}  // namespace fulcrum::cuda
