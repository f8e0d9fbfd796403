// Streams and events that free themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/host/wait.h"

namespace fulcrum::cuda {

// A CUDA handle of one device. Move-only.
template <class Raw, cudaError_t (*kDestroy)(Raw)>
class Handle {
 public:
  Handle() = default;
  Handle(int device, Raw raw) : device_(device), raw_(raw) {}
  Handle(Handle&& other) noexcept { *this = std::move(other); }
  Handle& operator=(Handle&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() {
    if (raw_ == nullptr || GivenUp(device_)) return;
    cudaSetDevice(device_);
    kDestroy(raw_);
    cudaGetLastError();  // clears the error of a lost device for the next caller
  }

  Raw get() const { return raw_; }
  int device() const { return device_; }

 private:
  int device_ = 0;
  Raw raw_ = nullptr;
};
using Stream = Handle<cudaStream_t, cudaStreamDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;
using GraphExec = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

// Launches go before uploads and checksums wherever the device has a choice. No stream waits for
// the legacy default stream.
enum class Priority { kLaunches, kBackground };
absl::StatusOr<Stream> MakeStream(int device, Priority priority);

// kOrder: for streams to wait for and for the host to ask, by wait.h (launches). kQuiet: the
// waiting thread sleeps (uploads). Neither keeps a time: that stalls its stream by 2 us (H200).
enum class EventKind { kOrder, kQuiet };
absl::StatusOr<Event> MakeEvent(int device, EventKind kind);

// Waits, asleep, for everything that is in the stream now. UNAVAILABLE after `limit`: the device is
// given up.
absl::Status WaitQuietly(const Stream& stream, const Event& event,
                         absl::Duration limit = kHangLimit);
// The same for what was in the event's stream when it was recorded; nothing if it never was.
absl::Status WaitQuietly(const Event& event, absl::Duration limit = kHangLimit);

}  // namespace fulcrum::cuda
