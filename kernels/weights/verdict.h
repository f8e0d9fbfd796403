// The loader's rules in one place: what becomes of a tensor of a checkpoint. Import (`--model`,
// configured checkpoints, their check before the start), inspect and quantize ask JudgeAll; a
// tensor that is named explicitly (LoadShard, ReplaceShard, configured shards, offline commands)
// meets JudgeContent, where its role by name and its shard name do not matter. What both leave to
// say before the rows are read is CheckServable (weight_source.h); whether devices have room is
// kernels/placement.h.
//
// The rules of JudgeAll, in their order; the first that holds decides:
//   skipped   its name says that it is no projection (tensor_names.h)
//   skipped   its shard name does not fit the grammar of resource names (name_part.h)
//   skipped   the file's reader lists it only (TensorInfo::undecided)
//   refused   a manifest contradicts it (TensorInfo::refused)
//   skipped   not a matrix, of a type that is not served, or without weights
//   refused   a scale grid is missing, of a wrong shape or type, cannot be read, or is there for a
//             weight that has no scales
//   skipped   larger than the backends take
//   refused   a scale is not finite, unless allow_nan
//   skipped   another served tensor has the same shard name
// Skipped: listed with the reason, the rest is served. Refused: the whole checkpoint is refused,
// since a projection that is clearly meant to be served would be missing or wrong.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/weights/named_weight.h"
#include "kernels/weights/tensor_catalog.h"

namespace fulcrum {

enum class Fate : uint8_t { kServed, kSkipped, kRefused };
std::string_view Name(Fate fate);  // "served", "skipped", "refused"

struct Verdict {
  Fate fate = Fate::kServed;
  // Why not: of kSkipped the reason alone, of kRefused a whole sentence with file and tensor, and
  // DATA_LOSS or another code where the file cannot be read. OK for kServed.
  absl::Status why;
  // Shard name, family and layer where the name has them. The source is set for kServed (but see
  // JudgeOptions::convert), and for what is refused for its scales alone.
  NamedWeight weight;
};

struct JudgeOptions {
  bool allow_nan = false;
  // F16 and F32 matrices count as served, without a source: quantize makes them so.
  bool convert = false;
};

// Verdicts in the catalog's order. Scale grids are read, weights are not.
std::vector<Verdict> JudgeAll(const TensorCatalog& catalog, const JudgeOptions& options);

// One tensor by its content. Its size and scales are for CheckServable, since a slice may pass
// where the whole does not.
Verdict JudgeContent(const TensorCatalog& catalog, const TensorInfo& tensor,
                     const JudgeOptions& options);

// Why a checkpoint with these verdicts is refused: a part of a model that would pass for the whole
// (TensorCatalog::whole), else the first refused tensor's reason and code.
absl::Status CheckRefused(const TensorCatalog& catalog, const std::vector<Verdict>& verdicts);
// Why it is not served: CheckRefused, or INVALID_ARGUMENT where no tensor is left to serve.
absl::Status CheckImport(const TensorCatalog& catalog, const std::vector<Verdict>& verdicts);

}  // namespace fulcrum
