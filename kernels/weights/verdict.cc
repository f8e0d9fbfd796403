// See verdict.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/verdict.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/weights/file_source.h"
#include "kernels/weights/name_part.h"
#include "kernels/weights/skipped_tensor.h"
#include "kernels/weights/tensor_names.h"

namespace fulcrum {
namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";
constexpr char kByName[] =
    "load it under a name of your own: LoadShard, or `shards { shard { name: ... tensor: ... } }` "
    "in the configuration";

Verdict Skipped(std::string reason) {
  return {.fate = Fate::kSkipped, .why = absl::InvalidArgumentError(reason), .weight = {}};
}
Verdict Refused(absl::Status why) {
  return {.fate = Fate::kRefused, .why = std::move(why), .weight = {}};
}
Verdict Refused(const TensorInfo& tensor, std::string_view why) {
  return Refused(absl::InvalidArgumentError(
      absl::StrCat(tensor.file->path(), ": tensor ", Quoted(tensor.name), ": ", std::string(why))));
}

const TensorInfo* ScaleGridOf(const TensorCatalog& catalog, const TensorInfo& tensor) {
  return catalog.Find(absl::StrCat(tensor.name, std::string(kScaleSuffix)));
}

// Why a tensor is none of the matrices that are served, or empty.
std::string SkipByType(const TensorInfo& tensor, const JudgeOptions& options) {
  if (tensor.shape.size() != 2) return absl::StrCat(tensor.shape.size(), "-D, not a matrix");
  switch (tensor.type) {
    case TensorType::kF8E4m3:
    case TensorType::kBf16:
    case TensorType::kQ2_0:
      break;
    case TensorType::kF16:
    case TensorType::kF32:
      if (options.convert) break;
      return absl::StrCat(tensor.dtype, " is not served; quantize the checkpoint or store BF16");
    case TensorType::kOther:
      return absl::StrCat("element type ", tensor.dtype, " is not served");
  }
  return tensor.bytes == 0 ? "holds no weights" : "";
}

// The name, then the content, then size and scales of the whole: all but collisions.
Verdict Judge(const TensorCatalog& catalog, const TensorInfo& tensor, const JudgeOptions& options) {
  TensorRole role = RoleOf(tensor.name);
  if (!role.skip.empty()) return Skipped(std::move(role.skip));
  if (absl::Status s = CheckShardLeaf(role.shard); !s.ok()) {
    return Skipped(absl::StrCat("no legal shard name: ", s.message(), "; ", kByName));
  }
  Verdict verdict = JudgeContent(catalog, tensor, options);
  if (verdict.fate != Fate::kServed) return verdict;
  verdict.weight.shard = std::move(role.shard);
  verdict.weight.family = role.family;
  verdict.weight.layer = role.layer;
  const WeightSpec size{.name = tensor.name, .n = tensor.shape[0], .k = tensor.shape[1]};
  if (absl::Status s = CheckSize(size); !s.ok()) {
    return Skipped(absl::StrCat("larger than is served: ", s.message(), "; ", kByName));
  }
  if (verdict.weight.source == nullptr) return verdict;
  if (absl::Status s = CheckServable(*verdict.weight.source, options.allow_nan); !s.ok()) {
    verdict.fate = Fate::kRefused;
    verdict.why = absl::Status(s.code(), absl::StrCat(tensor.file->path(), ": ", s.message()));
  }
  return verdict;
}

// Two tensors that ask for one shard name are both left out: choosing would be a guess.
void SkipCollisions(const TensorCatalog& catalog, std::vector<Verdict>& verdicts) {
  std::map<std::string, std::vector<size_t>> by_shard;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i].fate == Fate::kServed) by_shard[verdicts[i].weight.shard].push_back(i);
  }
  for (const auto& [shard, members] : by_shard) {
    if (members.size() == 1) continue;
    const std::string names = absl::StrJoin(members, ", ", [&](std::string* out, size_t i) {
      absl::StrAppend(out, catalog.tensors[i].name);
    });
    for (const size_t i : members) {
      verdicts[i] =
          Skipped(absl::StrCat("ambiguous: shard name ", shard, " fits ", names, "; ", kByName));
    }
  }
}

}  // namespace

std::string_view Name(Fate fate) {
  switch (fate) {
    case Fate::kServed:
      return "served";
    case Fate::kSkipped:
      return "skipped";
    case Fate::kRefused:
      break;
  }
  return "refused";
}

Verdict JudgeContent(const TensorCatalog& catalog, const TensorInfo& tensor,
                     const JudgeOptions& options) {
  if (!tensor.undecided.empty()) return Skipped(tensor.undecided);
  if (!tensor.refused.empty()) return Refused(tensor, tensor.refused);
  if (std::string reason = SkipByType(tensor, options); !reason.empty()) {
    return Skipped(std::move(reason));
  }
  const bool scaled = tensor.type == TensorType::kF8E4m3;
  const TensorInfo* grid = ScaleGridOf(catalog, tensor);
  if (!scaled && grid != nullptr) {
    return Refused(tensor,
                   absl::StrCat(tensor.dtype, " has no block scales, yet there is ",
                                Quoted(grid->name), ": it is not clear what the weight is"));
  }
  Verdict verdict;
  if (tensor.type == TensorType::kF16 || tensor.type == TensorType::kF32) return verdict;
  absl::StatusOr<std::shared_ptr<const WeightSource>> source =
      scaled ? OpenFp8Weight(tensor, grid) : OpenPlainWeight(tensor);
  if (!source.ok()) return Refused(source.status());
  verdict.weight.source = *std::move(source);
  return verdict;
}

std::vector<Verdict> JudgeAll(const TensorCatalog& catalog, const JudgeOptions& options) {
  std::vector<Verdict> verdicts;
  verdicts.reserve(catalog.tensors.size());
  for (const TensorInfo& tensor : catalog.tensors) {
    verdicts.push_back(Judge(catalog, tensor, options));
  }
  SkipCollisions(catalog, verdicts);
  return verdicts;
}

absl::Status CheckRefused(const TensorCatalog& catalog, const std::vector<Verdict>& verdicts) {
  if (!catalog.whole.ok()) return catalog.whole;
  const Verdict* first = nullptr;
  size_t refused = 0;
  for (const Verdict& verdict : verdicts) {
    if (verdict.fate != Fate::kRefused) continue;
    if (first == nullptr) first = &verdict;
    ++refused;
  }
  if (refused < 2) return first == nullptr ? absl::OkStatus() : first->why;
  return absl::Status(first->why.code(),
                      absl::StrCat(first->why.message(), " (and ", refused - 1,
                                   " more tensors are refused; `fulcrum inspect` lists them)"));
}

absl::Status CheckImport(const TensorCatalog& catalog, const std::vector<Verdict>& verdicts) {
  if (absl::Status s = CheckRefused(catalog, verdicts); !s.ok()) return s;
  std::vector<SkippedTensor> skipped;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i].fate == Fate::kServed) return absl::OkStatus();
    skipped.push_back({catalog.tensors[i].name, std::string(verdicts[i].why.message())});
  }
  return absl::InvalidArgumentError(absl::StrCat(
      catalog.path, " holds no tensor that can be served (", SkipSummary(skipped), ")"));
}

}  // namespace fulcrum
