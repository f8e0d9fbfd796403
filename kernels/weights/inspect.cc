// Descriptions of a file's tensors, by the same verdicts that serving uses.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/inspect.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

InspectedTensor Describe(const TensorInfo& tensor, const Verdict& verdict) {
  InspectedTensor row;
  row.name = tensor.name;
  row.file = tensor.file->path();
  row.dtype = tensor.dtype;
  row.shape = tensor.shape;
  row.offset = tensor.offset;
  row.bytes = tensor.bytes;
  row.format = FormatOf(tensor.type);
  row.q2_block = tensor.q2_block;
  row.fate = verdict.fate;
  row.why = std::string(verdict.why.message());
  row.shard = verdict.weight.shard;
  row.family = verdict.weight.family;
  row.layer = verdict.weight.layer;
  return row;
}

// What only the weight itself tells. A loader that meets non-finite weights refuses the shard, and
// with it the model.
absl::Status LookInto(const WeightSource& source, Scan scan, bool allow_nan, Verdict& verdict,
                      InspectedTensor& row) {
  ScaleCounts counts;
  const absl::Status finite =
      scan == Scan::kWeights ? CheckFinite(source, &counts) : CheckFiniteScales(source, &counts);
  if (!finite.ok() && !absl::IsInvalidArgument(finite)) return finite;
  row.non_finite = std::string(finite.message());
  if (counts.scales > 0) row.scales = counts;
  if (finite.ok() || allow_nan || verdict.fate == Fate::kRefused) return absl::OkStatus();
  verdict.fate = row.fate = Fate::kRefused;
  row.why = absl::StrCat(row.file, ": ", row.non_finite);
  verdict.why = absl::InvalidArgumentError(row.why);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Inspection> Inspect(const std::string& path, Scan scan, bool allow_nan) {
  absl::StatusOr<TensorCatalog> catalog = ReadCatalog(path);
  if (!catalog.ok()) return catalog.status();
  std::vector<Verdict> verdicts = JudgeAll(*catalog, {.allow_nan = allow_nan});
  Inspection inspection;
  inspection.path = path;
  inspection.container = catalog->container;
  inspection.files = catalog->files;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    Verdict& verdict = verdicts[i];
    InspectedTensor row = Describe(catalog->tensors[i], verdict);
    if (const auto source = verdict.weight.source; source != nullptr) {
      if (absl::Status s = LookInto(*source, scan, allow_nan, verdict, row); !s.ok()) return s;
    }
    if (verdict.fate == Fate::kServed) inspection.served.push_back(verdict.weight);
    inspection.tensors.push_back(std::move(row));
  }
  inspection.refusal = CheckImport(*catalog, verdicts);
  return inspection;
}

}  // namespace fulcrum
