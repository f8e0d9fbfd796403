// What a checkpoint holds and what the node would make of it, tensor by tensor: the content of
// `fulcrum inspect`. Reads headers and scale grids only.
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
};

struct Inspection {
  std::string path;
  std::string container;  // "safetensors" or "gguf"
  std::vector<std::string> files;
  std::vector<InspectedTensor> tensors;
};

absl::StatusOr<Inspection> Inspect(const std::string& path);

}  // namespace fulcrum
