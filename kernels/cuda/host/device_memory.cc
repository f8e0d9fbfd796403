// The runtime's allocation calls.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/host/device_memory.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/cuda_status.h"

namespace fulcrum::cuda {
namespace {

std::atomic<uint64_t> given_up = 0;  // a bit a device; no machine has 64
uint64_t Bit(int device) { return uint64_t{1} << (device % 64); }

}  // namespace

void GiveUp(int device) { given_up |= Bit(device); }
bool GivenUp(int device) { return (given_up.load(std::memory_order_relaxed) & Bit(device)) != 0; }

absl::Status SetDevice(int device) {
  if (GivenUp(device)) {
    return absl::UnavailableError(absl::StrCat("cuda:", device, " stopped answering"));
  }
  return CudaStatus(cudaSetDevice(device), "cudaSetDevice");
}

template <MemoryKind kKind>
absl::StatusOr<Buffer<kKind>> Buffer<kKind>::Make(int device, size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  if (absl::Status status = SetDevice(device); !status.ok()) return status;
  constexpr bool kPinned = kKind == MemoryKind::kPinned;
  void* data = nullptr;
  const cudaError_t error =
      kPinned ? cudaHostAlloc(&data, bytes, cudaHostAllocDefault) : cudaMalloc(&data, bytes);
  if (error != cudaSuccess) {
    const std::string call = absl::StrCat(kPinned ? "cudaHostAlloc" : "cudaMalloc", " of ", bytes,
                                          " bytes on cuda:", device);
    return CudaStatus(error, call.c_str());
  }
  buffer.device_ = device;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  if (kPinned) std::memset(data, 0, bytes);
  return buffer;
}

template <MemoryKind kKind>
Buffer<kKind>::~Buffer() {
  if (data_ == nullptr || GivenUp(device_)) return;
  // Errors are those of a lost device, or of a process that is ending: nothing is left to free.
  cudaSetDevice(device_);
  if (kKind == MemoryKind::kPinned) {
    cudaFreeHost(data_);
  } else {
    cudaFree(data_);
  }
  cudaGetLastError();
}

template class Buffer<MemoryKind::kDevice>;
template class Buffer<MemoryKind::kPinned>;

}  // namespace fulcrum::cuda
