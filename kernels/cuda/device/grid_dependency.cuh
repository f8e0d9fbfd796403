// The two instructions of programmatic launches (sm_90 and later). A grid that is launched
// programmatically starts while the grid before it on the stream still runs. On older architectures
// both calls do nothing: a grid starts after the one before it has ended.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum::cuda {

// Allows the next grid to start once every thread block of this grid has called this or has ended.
// Every block is resident by then, so the next grid cannot take the place of a block that other
// blocks spin for.
__device__ __forceinline__ void LaunchDependentGrids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the grid before this one has ended and its stores are visible. That grid must have
// made this call too; otherwise this grid can overtake the grid before that one.
__device__ __forceinline__ void WaitOnDependentGrids() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace fulcrum::cuda
