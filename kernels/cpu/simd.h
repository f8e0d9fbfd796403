// Which instruction sets the arms are compiled for. Included first by every file that is compiled
// once per instruction set (through hwy/foreach_target.h), so that all of them agree.
// Instruction sets without a fused multiply-add or with lengths unknown at compile time get the
// portable version: right everywhere, fast nowhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#define HWY_WANT_AVX3_DL  // byte permutes (VBMI): Ice Lake, Zen 4 and later
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
