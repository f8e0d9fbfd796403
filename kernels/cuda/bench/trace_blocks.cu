// Types of weights that differ from the arms' in name alone, so that the kernels are made once more
// with a trace in them.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bench/trace_blocks.h"
#include "kernels/cuda/device/block_trace.cuh"
#include "kernels/cuda/gemm/fragment.cuh"

namespace fulcrum::cuda {

struct TracedFragment : Fp8Fragment<false> {};
struct TracedQuarter : Fp8Quarter<false> {};

__device__ bench::BlockRecord* block_records;

// Nothing is kept in registers meanwhile: what the kernel has of them is its own.
struct Tracing {
  __device__ __forceinline__ Tracing() {
    if (threadIdx.x % 32 != 0) return;
    bench::BlockRecord& record = block_records[blockIdx.x];
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    record.sm = sm;
    atomicMin(&record.begin_ns, Nanoseconds());
    atomicMin(&record.begin_cycle, Cycles());
  }
  __device__ __forceinline__ ~Tracing() {
    if (threadIdx.x % 32 != 0) return;
    bench::BlockRecord& record = block_records[blockIdx.x];
    atomicMax(&record.end_cycle, Cycles());
    atomicMax(&record.end_ns, Nanoseconds());
  }

 private:
  static __device__ __forceinline__ unsigned long long Nanoseconds() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
  }
  static __device__ __forceinline__ unsigned long long Cycles() {
    unsigned long long cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
    return cycles;
  }
};
template <>
struct BlockTrace<TracedFragment> : Tracing {};
template <>
struct BlockTrace<TracedQuarter> : Tracing {};

}  // namespace fulcrum::cuda

// After the specialisations.
#include "kernels/cuda/mma/one_pass_arm.cuh"

namespace fulcrum::bench {
namespace {

template <int kTiles>
cudaError_t RunM16(const ArmArgs& args) {
  return cuda::LaunchSm80Gemm<cuda::TracedFragment, kTiles, 2>(cuda::MakeGemmParams(args),
                                                               cuda::StreamOf(args));
}

template <int kColumnTiles>
cudaError_t RunM32(const ArmArgs& args) {
  std::array<cuda::GemmTarget, cuda::kMaxGemmTargets> targets;
  bool serves = false;
  const cudaError_t error = cuda::LaunchOnePass<cuda::TracedQuarter, kColumnTiles>(
      cuda::MakeGemmParams(args), cuda::GemmTargetsOf(args, {}, targets),
      *static_cast<const cuda::CudaContext*>(args.context), &serves);
  return error == cudaSuccess && !serves ? cudaErrorNotSupported : error;
}

}  // namespace

cudaError_t TraceInto(BlockRecord* records) {
  return cudaMemcpyToSymbol(cuda::block_records, &records, sizeof(records));
}

std::span<const TracedArm> TracedArms() {
  static constexpr TracedArm kArms[] = {
      {"w8a16_gemm_m16", 16, &RunM16<2>},
      {"w8a16_gemm_m16_n64", 16, &RunM16<4>},
      {"w8a16_gemm_m32", 16, &RunM32<2>},
      {"w8a16_gemm_m32", 32, &RunM32<4>},
  };
  return kArms;
}

}  // namespace fulcrum::bench
