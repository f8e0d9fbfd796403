// The two instructions of programmatic launches: a grid that is launched so starts while the one
// before it on the stream still runs. Where the architecture has none, a grid starts after it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum::cuda {

// The grid after this one may start once every thread block here has said so or has ended. Every
// block is resident by then, so what starts early cannot take the place of a block that others spin
// for.
__device__ __forceinline__ void LaunchDependentGrids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the grid before this one has ended and what it wrote can be read. That grid must have
// waited itself, or this one can overtake the grid before it.
__device__ __forceinline__ void WaitOnDependentGrids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace fulcrum::cuda
