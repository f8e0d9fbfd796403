// Measurements by card on which a choice of arms depends. A card that is not listed gets the safe
// choice.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace fulcrum::cuda {

// q2_0_warp_rows serves four rows. Where it is faster, it is so up to this many.
inline constexpr int kWarpRowsFasterRows = 2;

// Whether it was measured faster on that card, at each of those row counts, than the next arm of
// the ladder. The value auto of the lever q2_warp_rows means this. card: DeviceInfo::description.
bool WarpRowsMeasuredFaster(std::string_view card);

}  // namespace fulcrum::cuda
