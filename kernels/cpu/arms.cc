// SPDX-License-Identifier: Apache-2.0
// The rows of arms.def as the ladder's table.
#include "kernels/cpu/arms.h"

namespace fulcrum::cpu {
namespace {

constexpr Arm kArms[] = {
#define ARM(fn, ...) Arm{.name = #fn, __VA_ARGS__, .run = &fn},
#include "kernels/cpu/arms.def"
#undef ARM
};

}  // namespace

std::span<const Arm> Arms() { return kArms; }

}  // namespace fulcrum::cpu
