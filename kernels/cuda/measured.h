// What was measured on which card, where a choice of arms depends on it. A card that is not listed
// gets the choice that is right without a measurement.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace fulcrum::cuda {

// Whether arm q2_0_warp_rows, for one to four rows, was faster there than what the ladder has below
// it: what the lever q2_warp_rows means by auto. card: DeviceInfo::description.
bool WarpRowsMeasuredFaster(std::string_view card);

}  // namespace fulcrum::cuda
