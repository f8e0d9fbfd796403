// A warp of mma.sync has 16 of a tile's rows, a warpgroup of wgmma all 64; both distribute rows and
// accumulators alike. Speed does not matter here; the instructions must be those of the arms.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/gemm/mma_step.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/runtime/probe.h"
#include "kernels/numerics/tensor_core.h"

namespace fulcrum::cuda {
namespace {

using numerics::StepSet;

constexpr int kThreads = 128;  // a warpgroup, four warps of 16 rows
constexpr int kProbeTiles = 64;
constexpr uint64_t kProbeSeed = 0x70726f6265;

struct Steps {
  const uint16_t* a;
  const uint16_t* b;
  float* c;  // accumulators, and results in their place
};

// One thread's part of a tile: the operands of each step, and rows g, g, g + 8, g + 8 of its warp
// at columns 2 t, 2 t + 1, 2 t, 2 t + 1.
struct Fragments {
  StepPairs a[StepSet::kSteps];
  float c[4];
};

__device__ __forceinline__ uint32_t Pair(const uint16_t* at) {
  return *reinterpret_cast<const uint32_t*>(at);
}
__device__ __forceinline__ float* Place(const Steps& steps, int e) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + e / 2 * 8 + lane / 4;
  const int64_t tile = blockIdx.x;
  return steps.c + (tile * StepSet::kRows + row) * StepSet::kColumns + lane % 4 * 2 + e % 2;
}
// Unused where the architecture has neither instruction.
[[maybe_unused]] __device__ __forceinline__ Fragments Read(const Steps& steps) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const int64_t tile = blockIdx.x;
  const uint16_t* const a = steps.a + (tile * StepSet::kRows + row) * StepSet::kK + lane % 4 * 2;
  Fragments out;
  for (int s = 0; s < StepSet::kSteps; ++s) {
    const uint16_t* const at = a + s * 16;
    out.a[s] = {
        {Pair(at), Pair(at + 8 * StepSet::kK), Pair(at + 8), Pair(at + 8 * StepSet::kK + 8)}};
  }
  for (int e = 0; e < 4; ++e) out.c[e] = *Place(steps, e);
  return out;
}

__global__ void __launch_bounds__(kThreads) MmaSyncSteps(Steps steps) {
#if __CUDA_ARCH__ >= 800
  const int lane = threadIdx.x % 32;
  Fragments mine = Read(steps);
  const uint16_t* const b =
      steps.b + (int64_t{blockIdx.x} * StepSet::kColumns + lane / 4) * StepSet::kK + lane % 4 * 2;
  for (int s = 0; s < StepSet::kSteps; ++s) {
    Mma(mine.c, mine.a[s], make_uint2(Pair(b + s * 16), Pair(b + s * 16 + 8)));
  }
  for (int e = 0; e < 4; ++e) *Place(steps, e) = mine.c[e];
#endif
}

__global__ void __launch_bounds__(kThreads) WgmmaSteps(Steps steps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // Columns of 128 bytes whose pieces of 16 are swizzled, as Wgmma's descriptor says.
  __shared__ __align__(1024) uint4 columns[StepSet::kColumns][8];
  constexpr int kPieces = StepSet::kK / 8;
  Fragments mine = Read(steps);
  const auto* const b = reinterpret_cast<const uint4*>(
      steps.b + int64_t{blockIdx.x} * StepSet::kColumns * StepSet::kK);
  for (int i = threadIdx.x; i < StepSet::kColumns * kPieces; i += kThreads) {
    const int column = i / kPieces, piece = i % kPieces;
    columns[column][piece ^ column] = b[i];
  }
  // Tensor cores read shared memory through another path than these stores.
  FenceProxyAsync();
  __syncthreads();
  const uint32_t descriptor = WgmmaDescriptor(SharedAddress(columns));
  float sums[4] = {mine.c[0], mine.c[1], mine.c[2], mine.c[3]};
  // All operands are in their registers before the first product and stay there, as in the arms.
#pragma unroll
  for (int s = 0; s < StepSet::kSteps; ++s) WarpgroupFenceOperand(mine.a[s].pair);
  WarpgroupFenceOperand(sums);
  WgmmaFence();
#pragma unroll
  for (int s = 0; s < StepSet::kSteps; ++s) Wgmma(sums, mine.a[s].pair, descriptor + s * 2, true);
  WgmmaCommit();
  WgmmaWait();
  WarpgroupFenceOperand(sums);
#pragma unroll
  for (int e = 0; e < 4; ++e) *Place(steps, e) = sums[e];
#endif
}

__global__ void TellCompiledCaps(uint32_t* caps) {
  uint32_t has = kCapNone;
#if __CUDA_ARCH__ >= 750
  has |= kCapImma;
#endif
#if __CUDA_ARCH__ >= 800
  has |= kCapMma;
#endif
#if __CUDA_ARCH__ >= 900
  has |= kCapBulkCopy;
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  has |= kCapSm90a;
#endif
  *caps = has;
}

}  // namespace

absl::StatusOr<uint32_t> CompiledCaps(int device, cudaStream_t stream) {
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Make(device, sizeof(uint32_t));
  if (!buffer.ok()) return buffer.status();
  TellCompiledCaps<<<1, 1, 0, stream>>>(reinterpret_cast<uint32_t*>(buffer->data()));
  absl::Status status = CudaStatus(cudaGetLastError(), "the first launch");
  uint32_t caps = 0;
  status.Update(CudaStatus(
      cudaMemcpyAsync(&caps, buffer->data(), sizeof(caps), cudaMemcpyDeviceToHost, stream),
      "cudaMemcpyAsync"));
  status.Update(CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  if (!status.ok()) return status;
  return caps;
}

absl::StatusOr<std::vector<uint32_t>> RunSteps(int device, cudaStream_t stream,
                                               MmaInstruction instruction, const StepSet& set) {
  if (absl::Status s = SetDevice(device); !s.ok()) return s;
  const size_t a_bytes = set.a.size() * 2, b_bytes = set.b.size() * 2, c_bytes = set.c.size() * 4;
  // Each part begins at a multiple of 16 bytes, since a tile's does.
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::Make(device, a_bytes + b_bytes + c_bytes);
  if (!buffer.ok()) return buffer.status();
  std::byte* const a = buffer->data();
  std::byte* const b = a + a_bytes;
  std::byte* const c = b + b_bytes;
  std::vector<uint32_t> results(set.c.size());
  const auto copy = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return CudaStatus(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
  };
  absl::Status status = copy(a, set.a.data(), a_bytes, cudaMemcpyHostToDevice);
  status.Update(copy(b, set.b.data(), b_bytes, cudaMemcpyHostToDevice));
  status.Update(copy(c, set.c.data(), c_bytes, cudaMemcpyHostToDevice));
  if (status.ok()) {
    const Steps steps = {reinterpret_cast<const uint16_t*>(a), reinterpret_cast<const uint16_t*>(b),
                         reinterpret_cast<float*>(c)};
    if (instruction == MmaInstruction::kWgmma) {
      WgmmaSteps<<<set.tiles, kThreads, 0, stream>>>(steps);
    } else {
      MmaSyncSteps<<<set.tiles, kThreads, 0, stream>>>(steps);
    }
    status.Update(CudaStatus(cudaGetLastError(), "the probe's launch"));
  }
  if (status.ok()) status.Update(copy(results.data(), c, c_bytes, cudaMemcpyDeviceToHost));
  // Also after a failure: what was enqueued uses the buffer freed next.
  status.Update(CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  if (!status.ok()) return status;
  return results;
}

absl::StatusOr<MmaProbe> ProbeMma(int device, cudaStream_t stream, uint32_t caps) {
  MmaProbe probe;
  const StepSet set = numerics::MakeStepSet(kProbeTiles, kProbeSeed);
  for (const auto& [instruction, needs] : {std::pair{MmaInstruction::kMmaSync, kCapMma},
                                           std::pair{MmaInstruction::kWgmma, kCapSm90a}}) {
    if ((caps & needs) == 0) continue;
    const absl::StatusOr<std::vector<uint32_t>> results =
        RunSteps(device, stream, instruction, set);
    if (!results.ok()) return results.status();
    probe.outputs += static_cast<int64_t>(results->size());
    probe.agreeing += numerics::CountAgreeing(set, *results, numerics::TensorCoreStep);
  }
  return probe;
}

}  // namespace fulcrum::cuda
