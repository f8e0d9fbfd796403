// What was measured on which card, where a choice of arms depends on it. A card that is not listed
// gets the choice that is right without a measurement.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace fulcrum::cuda {

// Up to how many rows q2_0_warp_rows, which serves four, is faster where it is faster at all.
inline constexpr int kWarpRowsFasterRows = 2;

// Whether it was faster there, at each of those, than what the ladder has below it: what the lever
// q2_warp_rows means by auto. card: DeviceInfo::description.
bool WarpRowsMeasuredFaster(std::string_view card);

}  // namespace fulcrum::cuda
