// Import of a checkpoint: which tensors become shards and why the others do not.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/checkpoint.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/weights/file_source.h"
#include "kernels/weights/tensor_names.h"

namespace fulcrum {
namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";

absl::StatusOr<std::shared_ptr<const WeightSource>> Open(const TensorCatalog& catalog,
                                                         const TensorInfo& tensor) {
  if (tensor.type != TensorType::kF8E4m3) return OpenPlainWeight(tensor);
  return OpenFp8Weight(tensor, catalog.Find(absl::StrCat(tensor.name, std::string(kScaleSuffix))));
}

// Why a tensor with a projection's name is not served, or empty.
std::string SkipByContent(const TensorInfo& tensor) {
  if (!tensor.undecided.empty()) return tensor.undecided;
  if (tensor.shape.size() != 2) {
    return absl::StrCat(tensor.shape.size(), "-D, not a matrix");
  }
  switch (tensor.type) {
    case TensorType::kF8E4m3:
    case TensorType::kBf16:
    case TensorType::kQ2_0:
      break;
    case TensorType::kF16:
    case TensorType::kF32:
      return absl::StrCat(tensor.dtype, " is not served; quantize the checkpoint or store BF16");
    case TensorType::kOther:
      return absl::StrCat("element type ", tensor.dtype, " is not served");
  }
  return tensor.bytes == 0 ? "holds no weights" : "";
}

absl::StatusOr<TensorDecision> Decide(const TensorCatalog& catalog, const TensorInfo& tensor) {
  TensorDecision decision;
  TensorRole role = RoleOf(tensor.name);
  decision.skip = role.skip.empty() ? SkipByContent(tensor) : role.skip;
  if (!decision.skip.empty()) return decision;
  absl::StatusOr<std::shared_ptr<const WeightSource>> source = Open(catalog, tensor);
  if (!source.ok()) return source.status();
  decision.weight = {.shard = std::move(role.shard),
                     .family = role.family,
                     .layer = role.layer,
                     .source = *std::move(source)};
  return decision;
}

// Two tensors that ask for one shard name are both left out: choosing would be a guess.
void SkipCollisions(const TensorCatalog& catalog,
                    std::vector<absl::StatusOr<TensorDecision>>& decisions) {
  std::map<std::string, std::vector<size_t>> by_shard;
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].ok() && decisions[i]->skip.empty()) {
      by_shard[decisions[i]->weight.shard].push_back(i);
    }
  }
  for (const auto& [shard, members] : by_shard) {
    if (members.size() == 1) continue;
    const std::string names = absl::StrJoin(members, ", ", [&](std::string* out, size_t i) {
      absl::StrAppend(out, catalog.tensors[i].name);
    });
    for (const size_t i : members) {
      decisions[i]->skip = absl::StrCat("ambiguous: shard name ", shard, " fits ", names,
                                        "; name the tensor explicitly");
      decisions[i]->weight.source = nullptr;
    }
  }
}

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

std::vector<absl::StatusOr<TensorDecision>> DecideAll(const TensorCatalog& catalog) {
  std::vector<absl::StatusOr<TensorDecision>> decisions;
  decisions.reserve(catalog.tensors.size());
  for (const TensorInfo& tensor : catalog.tensors) decisions.push_back(Decide(catalog, tensor));
  SkipCollisions(catalog, decisions);
  return decisions;
}

absl::StatusOr<Checkpoint> ImportCheckpoint(const std::string& path) {
  absl::StatusOr<TensorCatalog> catalog = ReadCatalog(path);
  if (!catalog.ok()) return catalog.status();
  if (!catalog->whole.ok()) return catalog->whole;
  std::vector<absl::StatusOr<TensorDecision>> decisions = DecideAll(*catalog);
  Checkpoint checkpoint;
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (!decisions[i].ok()) return decisions[i].status();
    if (decisions[i]->skip.empty()) {
      checkpoint.shards.push_back(std::move(decisions[i]->weight));
    } else {
      checkpoint.skipped.push_back({catalog->tensors[i].name, decisions[i]->skip});
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
  if (info != nullptr) return Open(catalog, *info);
  return absl::NotFoundError(absl::StrCat(catalog.path, " holds no tensor ", Quoted(tensor),
                                          " among its ", catalog.tensors.size(),
                                          SimilarNames(catalog, tensor)));
}

absl::StatusOr<std::shared_ptr<const WeightSource>> OpenTensor(const std::string& path,
                                                               std::string_view tensor) {
  absl::StatusOr<TensorCatalog> catalog = ReadCatalog(path);
  if (!catalog.ok()) return catalog.status();
  return OpenTensor(*catalog, tensor);
}

}  // namespace fulcrum
