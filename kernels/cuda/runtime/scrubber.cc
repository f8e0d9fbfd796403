// See scrubber.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/scrubber.h"

#include <cstring>
#include <utility>

#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/runtime/checksum.h"

namespace fulcrum::cuda {

absl::StatusOr<std::shared_ptr<Scrubber>> Scrubber::Make(int device) {
  absl::StatusOr<Stream> stream = MakeStream(device, Priority::kBackground);
  if (!stream.ok()) return stream.status();
  absl::StatusOr<Event> done = MakeEvent(device, EventKind::kQuiet);
  if (!done.ok()) return done.status();
  absl::StatusOr<DeviceBuffer> sum = DeviceBuffer::Make(device, sizeof(uint64_t));
  if (!sum.ok()) return sum.status();
  absl::StatusOr<PinnedBuffer> host = PinnedBuffer::Make(device, sizeof(uint64_t));
  if (!host.ok()) return host.status();
  std::shared_ptr<Scrubber> scrubber(new Scrubber(device));
  absl::MutexLock lock(&scrubber->mutex_);
  scrubber->stream_ = *std::move(stream);
  scrubber->done_ = *std::move(done);
  scrubber->sum_ = *std::move(sum);
  scrubber->host_ = *std::move(host);
  return scrubber;
}

absl::StatusOr<uint64_t> Scrubber::Checksum(const std::byte* data, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = SetDevice(device_); !s.ok()) return s;
  auto* const sum = reinterpret_cast<unsigned long long*>(sum_.data());
  if (absl::Status s = CudaStatus(EnqueueChecksum(data, bytes, sum, stream_.get()), "checksum");
      !s.ok()) {
    return s;
  }
  if (absl::Status s = CudaStatus(cudaMemcpyAsync(host_.data(), sum, sizeof(uint64_t),
                                                  cudaMemcpyDeviceToHost, stream_.get()),
                                  "cudaMemcpyAsync");
      !s.ok()) {
    return s;
  }
  if (absl::Status s = WaitQuietly(stream_, done_); !s.ok()) return s;
  uint64_t value = 0;
  std::memcpy(&value, host_.data(), sizeof(value));
  return value;
}

absl::Status Scrubber::Flip(std::byte* at, int bit) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status s = SetDevice(device_); !s.ok()) return s;
  if (absl::Status s =
          CudaStatus(cudaMemcpyAsync(host_.data(), at, 1, cudaMemcpyDeviceToHost, stream_.get()),
                     "cudaMemcpyAsync");
      !s.ok()) {
    return s;
  }
  if (absl::Status s = WaitQuietly(stream_, done_); !s.ok()) return s;
  *host_.data() ^= static_cast<std::byte>(1 << bit);
  if (absl::Status s =
          CudaStatus(cudaMemcpyAsync(at, host_.data(), 1, cudaMemcpyHostToDevice, stream_.get()),
                     "cudaMemcpyAsync");
      !s.ok()) {
    return s;
  }
  return WaitQuietly(stream_, done_);
}

}  // namespace fulcrum::cuda
