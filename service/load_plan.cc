// See load_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/load_plan.h"

#include <map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/placement.h"
#include "kernels/weights/checkpoint.h"
#include "kernels/weights/slice.h"
#include "kernels/weights/synthetic.h"
#include "service/shard_name.h"

namespace fulcrum::service {
namespace {

constexpr uint64_t kSyntheticSeed = 1;  // the same bytes on every node

using Source = std::shared_ptr<const WeightSource>;

absl::StatusOr<Source> Cut(Source source, const WeightFileRef& file) {
  if (file.row_begin == 0 && file.row_end == 0 && file.col_begin == 0 && file.col_end == 0) {
    return source;
  }
  const auto length = [](int64_t begin, int64_t end) { return end == 0 ? -1 : end - begin; };
  if (file.row_begin < 0 || file.col_begin < 0 || file.row_end < 0 || file.col_end < 0 ||
      (file.row_end != 0 && file.row_end <= file.row_begin) ||
      (file.col_end != 0 && file.col_end <= file.col_begin)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "slice rows %d to %d, columns %d to %d of tensor %s; expected 0 <= begin < end, or an end "
        "of 0 for the whole extent",
        file.row_begin, file.row_end, file.col_begin, file.col_end, file.tensor));
  }
  return Slice(std::move(source), {.row = file.row_begin,
                                   .rows = length(file.row_begin, file.row_end),
                                   .column = file.col_begin,
                                   .columns = length(file.col_begin, file.col_end)});
}

std::string Sentence(const std::string& place, const std::string& name,
                     const absl::Status& status) {
  return absl::StrCat(place, place.empty() ? "" : ": ", name, ": ", status.message());
}

class Planner {
 public:
  explicit Planner(const Config& config) : config_(config) {}

  LoadPlan Plan() {
    for (size_t i = 0; i < config_.models.size(); ++i) {
      const ModelConfig& model = config_.models[i];
      const std::string field = absl::StrFormat("models[%d]", i);
      if (const auto* shards = std::get_if<std::vector<ExplicitShardConfig>>(&model.source)) {
        AddExplicit(model, *shards, field);
        continue;
      }
      const auto* file = std::get_if<CheckpointPath>(&model.source);
      const absl::Status status =
          file != nullptr ? AddCheckpoint(model, file->path) : AddSynthetic(model);
      if (!status.ok()) Problem(field, absl::StrCat("models/", model.model), status);
    }
    return std::move(plan_);
  }

 private:
  void Problem(const std::string& field, const std::string& name, const absl::Status& status) {
    plan_.problems.push_back(Sentence(PlaceOf(config_, field), name, status));
  }

  void AddNamed(const ModelConfig& model, std::vector<NamedWeight> weights) {
    for (NamedWeight& weight : weights) {
      plan_.shards.push_back(
          {.name = ShardName(model.model, weight.shard),
           .family = weight.family,
           .layer = weight.layer < 0 ? "" : absl::StrCat(model.model, "/", weight.layer),
           .source = std::move(weight.source),
           .device = "",
           .placed = "",
           .expect_hash = "",
           .allow_nan = model.allow_nan,
           .place = ""});
    }
  }

  absl::Status AddCheckpoint(const ModelConfig& model, const std::string& path) {
    absl::StatusOr<Checkpoint> checkpoint = ImportCheckpoint(path, model.allow_nan);
    if (!checkpoint.ok()) return checkpoint.status();
    if (!checkpoint->skipped.empty()) {
      plan_.skips.push_back({model.model, std::move(checkpoint->skipped)});
    }
    AddNamed(model, std::move(checkpoint->shards));
    return absl::OkStatus();
  }

  absl::Status AddSynthetic(const ModelConfig& model) {
    const std::string& name = std::get<SyntheticName>(model.source).name;
    absl::StatusOr<std::vector<NamedWeight>> weights = SyntheticModel(name, kSyntheticSeed);
    if (!weights.ok()) return weights.status();
    AddNamed(model, *std::move(weights));
    return absl::OkStatus();
  }

  // Several shards are often of one file, whose header is read once.
  const absl::StatusOr<TensorCatalog>& CatalogOf(const std::string& path) {
    const auto it = catalogs_.find(path);
    return it != catalogs_.end() ? it->second
                                 : catalogs_.emplace(path, ReadCatalog(path)).first->second;
  }

  absl::StatusOr<Source> Open(const ExplicitShardConfig& shard, bool allow_nan) {
    const absl::StatusOr<TensorCatalog>& catalog = CatalogOf(shard.path);
    if (!catalog.ok()) return catalog.status();
    return OpenExplicit(*catalog,
                        {.path = shard.path,
                         .tensor = shard.tensor,
                         .row_begin = shard.row_begin,
                         .row_end = shard.row_end,
                         .col_begin = shard.col_begin,
                         .col_end = shard.col_end},
                        allow_nan);
  }

  void AddExplicit(const ModelConfig& model, const std::vector<ExplicitShardConfig>& shards,
                   const std::string& field) {
    for (size_t i = 0; i < shards.size(); ++i) {
      const ExplicitShardConfig& shard = shards[i];
      const std::string name = ShardName(model.model, shard.name);
      const std::string shard_field = absl::StrFormat("%s.shards.shard[%d]", field, i);
      const bool allow_nan = model.allow_nan || shard.allow_nan;
      absl::StatusOr<Source> source = Open(shard, allow_nan);
      if (!source.ok()) {
        Problem(shard_field, name, source.status());
        continue;
      }
      plan_.shards.push_back({.name = name,
                              .family = shard.family,
                              .layer = "",
                              .source = *std::move(source),
                              .device = shard.device,
                              .placed = "",
                              .expect_hash = shard.expect_hash,
                              .allow_nan = allow_nan,
                              .place = PlaceOf(config_, shard_field)});
    }
  }

  const Config& config_;
  std::map<std::string, absl::StatusOr<TensorCatalog>> catalogs_;
  LoadPlan plan_;
};

}  // namespace

absl::Status LoadPlan::status() const {
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

LoadPlan OpenModels(const Config& config) { return Planner(config).Plan(); }

void PlaceModels(const std::vector<Backend*>& devices, LoadPlan& plan) {
  std::vector<PlacedWeight> weights;
  for (const PlannedShard& shard : plan.shards) {
    weights.push_back({.name = shard.name,
                       .spec = shard.source->spec(),
                       .device = shard.device,
                       .group = shard.layer,
                       .status = absl::OkStatus(),
                       .placed = ""});
  }
  const std::vector<const Backend*> backends(devices.begin(), devices.end());
  const absl::Status room = PlaceAll(backends, weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    plan.shards[i].placed = weights[i].placed;
    if (weights[i].status.ok() || absl::IsResourceExhausted(weights[i].status)) continue;
    plan.problems.push_back(Sentence(plan.shards[i].place, weights[i].name, weights[i].status));
  }
  if (!room.ok()) plan.problems.emplace_back(room.message());
}

absl::StatusOr<Source> OpenExplicit(const TensorCatalog& catalog, const WeightFileRef& file,
                                    bool allow_nan) {
  absl::StatusOr<Source> source = OpenTensor(catalog, file.tensor);
  if (!source.ok()) return source;
  source = Cut(*std::move(source), file);
  if (!source.ok()) return source;
  if (absl::Status s = CheckServable(**source, allow_nan); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(catalog.path, ": ", s.message()));
  }
  return source;
}

}  // namespace fulcrum::service
