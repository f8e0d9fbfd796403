// What a checkpoint holds and what the node would make of it, tensor by tensor: the content of
// `fulcrum inspect`. Reads headers and scale grids, and the weights when asked to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/types.h"

namespace fulcrum {

struct InspectedTensor {
  std::string name;
  std::string file;
  std::string dtype;           // as the file spells it
  std::vector<int64_t> shape;  // outermost first
  uint64_t offset = 0;         // in its file
  uint64_t bytes = 0;
  std::string format;  // the weight format it would be served in, empty when it is not
  int q2_block = 0;    // q2_0: weights per scale
  std::string shard;   // empty when skipped or in error
  Family family = Family::kOther;
  int layer = -1;
  std::string skip_reason;  // why it is not served; empty for a shard
  bool broken = false;      // skip_reason is an error that would stop an import
  // Where the first NaN or infinity was found: loading needs allow_nan. Empty: none was found.
  std::string non_finite;
};

struct Inspection {
  std::string path;
  std::string container;  // "safetensors" or "gguf"
  std::vector<std::string> files;
  std::vector<InspectedTensor> tensors;
};

// How far NaN and infinity are looked for: in the scale grids, or in every weight too, which takes
// as long as reading the files.
enum class Scan { kScales, kWeights };

// DATA_LOSS when a file ends or changes while its weights are read.
absl::StatusOr<Inspection> Inspect(const std::string& path, Scan scan = Scan::kScales);

}  // namespace fulcrum
