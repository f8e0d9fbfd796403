// What a Hugging Face directory's config.json says about its fp8 weights. The block size is read
// from there, not from shapes: grids of other blocks can have the shape of ours by chance.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace fulcrum {

// OK when `directory` has no config.json, or one that does not speak against E4M3 weights with one
// scale per 128x128 block. INVALID_ARGUMENT names the file, the field, expected and found.
absl::Status CheckQuantizationConfig(const std::string& directory);

}  // namespace fulcrum
