// Import of a checkpoint, and of one tensor of it.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/checkpoint.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/weights/verdict.h"

namespace fulcrum {
namespace {

// Up to three names that contain, or are contained in, the one that was not found.
std::string SimilarNames(const TensorCatalog& catalog, std::string_view name) {
  constexpr size_t kShown = 3;
  std::vector<std::string> similar;
  for (const TensorInfo& tensor : catalog.tensors) {
    const bool related = tensor.name.find(name) != std::string::npos ||
                         name.find(tensor.name) != std::string_view::npos;
    if (related && similar.size() < kShown) similar.push_back(tensor.name);
  }
  return similar.empty() ? "" : absl::StrCat("; did you mean ", absl::StrJoin(similar, " or "));
}

}  // namespace

absl::StatusOr<Checkpoint> ImportCheckpoint(const std::string& path, bool allow_nan) {
  absl::StatusOr<TensorCatalog> catalog = ReadCatalog(path);
  if (!catalog.ok()) return catalog.status();
  std::vector<Verdict> verdicts = JudgeAll(*catalog, {.allow_nan = allow_nan});
  if (absl::Status s = CheckImport(*catalog, verdicts); !s.ok()) return s;
  Checkpoint checkpoint;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i].fate == Fate::kServed) {
      checkpoint.shards.push_back(std::move(verdicts[i].weight));
    } else {
      checkpoint.skipped.push_back(
          {catalog->tensors[i].name, std::string(verdicts[i].why.message())});
    }
  }
  std::sort(checkpoint.shards.begin(), checkpoint.shards.end(),
            [](const NamedWeight& a, const NamedWeight& b) {
              // The unsigned view puts -1, "no layer", last.
              return std::forward_as_tuple(static_cast<unsigned>(a.layer), a.shard) <
                     std::forward_as_tuple(static_cast<unsigned>(b.layer), b.shard);
            });
  return checkpoint;
}

absl::StatusOr<std::shared_ptr<const WeightSource>> OpenTensor(const TensorCatalog& catalog,
                                                               std::string_view tensor) {
  const TensorInfo* info = catalog.Find(tensor);
  if (info == nullptr) {
    return absl::NotFoundError(absl::StrCat(catalog.path, " holds no tensor ", Quoted(tensor),
                                            " among its ", catalog.tensors.size(),
                                            SimilarNames(catalog, tensor)));
  }
  Verdict verdict = JudgeContent(catalog, *info, {});
  switch (verdict.fate) {
    case Fate::kServed:
      return std::move(verdict.weight.source);
    case Fate::kSkipped:
      return absl::InvalidArgumentError(absl::StrCat(
          info->file->path(), ": tensor ", Quoted(info->name), ": ", verdict.why.message()));
    case Fate::kRefused:
      break;
  }
  return verdict.why;
}

absl::StatusOr<std::shared_ptr<const WeightSource>> OpenTensor(const std::string& path,
                                                               std::string_view tensor) {
  absl::StatusOr<TensorCatalog> catalog = ReadCatalog(path);
  if (!catalog.ok()) return catalog.status();
  return OpenTensor(*catalog, tensor);
}

}  // namespace fulcrum
