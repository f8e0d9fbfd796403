// One BF16 step of the tensor core (mma.sync.m16n8k16 and wgmma k16, FP32 accumulate), in integers,
// bit for bit. Fitted to and checked against outputs of an sm_90 card
// (tests/data/tensor_core_sm90); other architectures have the instruction but were not measured.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace fulcrum::numerics {

// a, b: 16 BF16 bit patterns each (b need not be finite). c: FP32 bit pattern. Returns the FP32
// bits of c + sum a[i] * b[i] as the card computes it: terms cut to 25 fractional bits below the
// largest exponent, added exactly, the sum cut toward zero. NaN results are 0x7fffffff.
uint32_t TensorCoreStep(const uint16_t* a, const uint16_t* b, uint32_t c);

}  // namespace fulcrum::numerics
