// Division by a number that is known at launch, as a multiplication.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::cuda {

// Valid for dividends below 2^20 and divisors below 2^12.
struct FastDivmod {
  uint32_t by, magic;
  explicit FastDivmod(int divisor)
      : by(static_cast<uint32_t>(divisor)),
        magic(static_cast<uint32_t>((uint64_t{1} << 32) / by + 1)) {}
  __device__ __forceinline__ int operator()(int a) const {
    return by == 1 ? a : static_cast<int>(__umulhi(static_cast<uint32_t>(a), magic));
  }
};

}  // namespace fulcrum::cuda
