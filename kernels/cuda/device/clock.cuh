// The device's clock.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fulcrum::cuda {

// Nanoseconds. All multiprocessors share this clock.
__device__ __forceinline__ unsigned long long GlobalTimer() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace fulcrum::cuda
