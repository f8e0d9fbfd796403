// What a checkpoint holds and what the node would make of it, tensor by tensor: the content of
// `fulcrum inspect`. Reads headers and scale grids, and the weights when asked to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/types.h"
#include "kernels/weights/verdict.h"

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
  Fate fate = Fate::kServed;
  std::string why;    // of a skipped or refused tensor
  std::string shard;  // what it is served as, or would be with allow_nan; else empty
  Family family = Family::kOther;
  int layer = -1;
  // Where the first weight or scale that is no finite number was found: it is refused unless
  // allow_nan. Empty: none was found.
  std::string non_finite;
  // Of tensors with a shard name: from the grid of fp8 always, from the rows of q2_0 where they
  // were read.
  std::optional<ScaleCounts> scales;
};

struct Inspection {
  std::string path;
  std::string container;  // "safetensors" or "gguf"
  std::vector<std::string> files;
  std::vector<InspectedTensor> tensors;
  // Why a node refuses the checkpoint; OK: it serves every tensor whose fate is kServed.
  absl::Status refusal;
  std::vector<NamedWeight> served;  // their weights, in the order of `tensors`
};

// How far NaN and infinity are looked for: in the scale grids, or in every weight too, which takes
// as long as reading the files.
enum class Scan { kScales, kWeights };

// `allow_nan`: as a node does whose configuration says so. The errors are those of reading the
// headers; DATA_LOSS too when a file ends or changes while its weights are read.
absl::StatusOr<Inspection> Inspect(const std::string& path, Scan scan = Scan::kScales,
                                   bool allow_nan = false);

}  // namespace fulcrum
