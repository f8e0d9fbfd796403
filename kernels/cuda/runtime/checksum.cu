// Sum over 64-bit words of a mix of the word and its index. The mix maps words one-to-one for a
// fixed index, and sums are modulo 2^64, so one changed word always changes the sum; integer
// addition has no order, so any grid gives the same.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/checksum.h"

namespace fulcrum::cuda {
namespace {

constexpr int kThreads = 256;
// Few blocks, so that launches that arrive during a scrub have most of the device.
constexpr int64_t kMaxBlocks = 64;

__device__ unsigned long long Mix(unsigned long long word, unsigned long long index) {
  word ^= (index + 1) * 0x9e3779b97f4a7c15ull;
  word = (word ^ word >> 32) * 0xd6e8feb86659fd93ull;
  word = (word ^ word >> 32) * 0xd6e8feb86659fd93ull;
  return word ^ word >> 32;
}

__global__ void __launch_bounds__(kThreads)
    ChecksumKernel(const std::byte* data, int64_t bytes, unsigned long long* sum) {
  const auto* words = reinterpret_cast<const unsigned long long*>(data);
  const int64_t count = bytes / 8;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t self = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  unsigned long long part = 0;
#pragma unroll 4
  for (int64_t i = self; i < count; i += stride) {
    part += Mix(words[i], static_cast<unsigned long long>(i));
  }
  const int tail = static_cast<int>(bytes % 8);
  if (self == 0 && tail != 0) {  // the last word, padded with zeros
    unsigned long long word = 0;
    for (int i = 0; i < tail; ++i) {
      word |= static_cast<unsigned long long>(data[count * 8 + i]) << (8 * i);
    }
    part += Mix(word, static_cast<unsigned long long>(count));
  }
  for (int lane = 16; lane > 0; lane /= 2) part += __shfl_down_sync(0xffffffffu, part, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, part);
}

}  // namespace

cudaError_t EnqueueChecksum(const std::byte* data, int64_t bytes, unsigned long long* sum,
                            cudaStream_t stream) {
  const cudaError_t cleared = cudaMemsetAsync(sum, 0, sizeof(*sum), stream);
  if (cleared != cudaSuccess) return cleared;
  int64_t blocks = (bytes / 8 + kThreads - 1) / kThreads;
  if (blocks < 1) blocks = 1;
  if (blocks > kMaxBlocks) blocks = kMaxBlocks;
  ChecksumKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(data, bytes, sum);
  return cudaGetLastError();
}

}  // namespace fulcrum::cuda
