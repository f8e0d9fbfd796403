// What a manifest says about 8-bit float weights, in the words of Hugging Face's fp8 (DeepSeek),
// compressed-tensors and ModelOpt. The block size is read from there, not from shapes: grids of
// other blocks can have the shape of ours by chance.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fulcrum {

// Why F8_E4M3 weights with a scale for each 128x128 block contradict the document, as
// "quantization_config.weight_block_size is [96,96]; only [128,128] is served"; empty when they do
// not. Fields count inside quantization sections, however deep these are nested (text_config);
// `all`: the whole document is one.
std::string Fp8Contradiction(const nlohmann::json& document, bool all);

}  // namespace fulcrum
