// Whether a checkpoint holds the decoder layers that its manifest (config.json) or header (GGUF
// block_count) promises.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace fulcrum {

struct LayerPromise {
  uint64_t layers = 0;
  uint64_t optional = 0;  // the last ones, which files are often made without (next-token heads)
  std::string source;     // "config.json: num_hidden_layers"
};

// `tensors` are names. INVALID_ARGUMENT where a layer of the promise has no tensor at all, of
// whatever kind: then the files are a part of a model, and a model that is served has its every
// layer. So a GGUF file with one block whose block_count is 4 is refused, as is a folder of two
// layers whose config.json says 4. The refusal is of the model as a whole: tensors of the layers
// that are there can be loaded by name.
// More layers than promised are fine (draft heads are kept behind the last layer).
absl::Status CheckLayers(const std::vector<std::string_view>& tensors, const LayerPromise& promise);

}  // namespace fulcrum
