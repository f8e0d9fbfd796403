// bf16 weights, class blockfold, every M. The kernel is blockfold-inl.h's.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/arms/cpu_dense_bf16_blockfold.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/blockfold-inl.h"
#include "kernels/cpu/tile_arm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {
absl::Status RunDenseBf16Blockfold(const ArmArgs& args) {
  return RunTileArm<BlockfoldKernel<Bf16Codec>>(args);
}
}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/cpu/arms.h"

namespace fulcrum::cpu {
HWY_EXPORT(RunDenseBf16Blockfold);
absl::Status cpu_dense_bf16_blockfold(const ArmArgs& args) {
  return HWY_DYNAMIC_DISPATCH(RunDenseBf16Blockfold)(args);
}
}  // namespace fulcrum::cpu
#endif  // HWY_ONCE
