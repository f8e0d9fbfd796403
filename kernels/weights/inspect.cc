// Descriptions of a file's tensors, by the same import that serving uses.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/inspect.h"

#include "kernels/weights/checkpoint.h"
#include "kernels/weights/tensor_catalog.h"

namespace fulcrum {
namespace {

// The format a tensor's type is served in, whatever its role; empty for a type that is not served.
std::string FormatOf(TensorType type) {
  switch (type) {
    case TensorType::kF8E4m3:
      return std::string(Name(WeightFormat::kFp8Block128));
    case TensorType::kQ2_0:
      return std::string(Name(WeightFormat::kQ2_0));
    case TensorType::kBf16:
      return std::string(Name(WeightFormat::kBf16));
    case TensorType::kF16:
    case TensorType::kF32:
    case TensorType::kOther:
      break;
  }
  return "";
}

}  // namespace

absl::StatusOr<Inspection> Inspect(const std::string& path, Scan scan) {
  absl::StatusOr<TensorCatalog> catalog = ReadCatalog(path);
  if (!catalog.ok()) return catalog.status();
  if (!catalog->whole.ok()) return catalog->whole;
  const std::vector<absl::StatusOr<TensorDecision>> decisions = DecideAll(*catalog);
  Inspection inspection;
  inspection.path = path;
  inspection.container = catalog->container;
  inspection.files = catalog->files;
  for (size_t i = 0; i < decisions.size(); ++i) {
    const TensorInfo& tensor = catalog->tensors[i];
    const absl::StatusOr<TensorDecision>& decision = decisions[i];
    InspectedTensor row;
    row.name = tensor.name;
    row.file = tensor.file->path();
    row.dtype = tensor.dtype;
    row.shape = tensor.shape;
    row.offset = tensor.offset;
    row.bytes = tensor.bytes;
    row.format = FormatOf(tensor.type);
    row.q2_block = tensor.q2_block;
    if (!decision.ok()) {
      row.broken = true;
      row.skip_reason = std::string(decision.status().message());
    } else if (!decision->skip.empty()) {
      row.skip_reason = decision->skip;
    } else {
      row.shard = decision->weight.shard;
      row.family = decision->weight.family;
      row.layer = decision->weight.layer;
      const WeightSource& source = *decision->weight.source;
      const absl::Status finite =
          scan == Scan::kWeights ? CheckFinite(source) : CheckFiniteScales(source);
      if (!finite.ok() && !absl::IsInvalidArgument(finite)) return finite;
      row.non_finite = std::string(finite.message());
    }
    inspection.tensors.push_back(std::move(row));
  }
  return inspection;
}

}  // namespace fulcrum
