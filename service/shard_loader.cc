// From names to weights: opening and slicing, and the load at start.
// SPDX-License-Identifier: Apache-2.0
#include "service/shard_loader.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/weights/checkpoint.h"
#include "kernels/weights/slice.h"
#include "kernels/weights/synthetic.h"
#include "kernels/weights/tensor_catalog.h"
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

// Ends a load between two reads when the node stops. Let go of the flag once loaded: the weight,
// and the audits that read it, outlive whoever holds the flag.
class StoppableSource final : public WeightSource {
 public:
  StoppableSource(Source inner, const std::atomic<bool>* stop)
      : inner_(std::move(inner)), stop_(stop) {}

  const WeightSpec& spec() const override { return inner_->spec(); }
  std::span<const float> scales() const override { return inner_->scales(); }
  std::string origin() const override { return inner_->origin(); }
  void ReleasePages() const override { inner_->ReleasePages(); }
  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
    const std::atomic<bool>* stop = stop_.load(std::memory_order_acquire);
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("the node is stopping");
    }
    return inner_->ReadRows(row, count, out);
  }
  void LetGo() { stop_.store(nullptr, std::memory_order_release); }

 private:
  const Source inner_;
  std::atomic<const std::atomic<bool>*> stop_;
};

// One shard to be loaded, opened already unless `status` says why not.
struct Item {
  std::string model, name;
  Family family = Family::kOther;
  int layer = -1;
  Source source;
  std::string origin;  // of what could not be opened
  absl::Status status;
  std::string device, expect_hash;
  bool allow_nan = false;
};

void AddNamed(const ModelConfig& model, std::vector<NamedWeight> weights,
              std::vector<Item>* items) {
  for (NamedWeight& weight : weights) {
    Item item;
    item.model = model.model;
    item.name = ShardName(model.model, weight.shard);
    item.family = weight.family;
    item.layer = weight.layer;
    item.source = std::move(weight.source);
    item.allow_nan = model.allow_nan;
    items->push_back(std::move(item));
  }
}

void AddExplicit(const ModelConfig& model, const std::vector<ExplicitShardConfig>& shards,
                 std::vector<Item>* items) {
  for (const ExplicitShardConfig& shard : shards) {
    Item item;
    item.model = model.model;
    item.name = ShardName(model.model, shard.name);
    item.family = shard.family;
    item.origin = absl::StrFormat("%s:%s", shard.path, shard.tensor);
    item.device = shard.device;
    item.expect_hash = shard.expect_hash;
    item.allow_nan = model.allow_nan || shard.allow_nan;
    absl::StatusOr<Source> source = OpenConfigured({.path = shard.path,
                                                    .tensor = shard.tensor,
                                                    .row_begin = shard.row_begin,
                                                    .row_end = shard.row_end,
                                                    .col_begin = shard.col_begin,
                                                    .col_end = shard.col_end});
    item.status = source.status();
    if (source.ok()) item.source = *std::move(source);
    items->push_back(std::move(item));
  }
}

// Opens a model's weights (headers only). An error is the model's, not one shard's.
absl::Status Expand(const ModelConfig& model, std::vector<Item>* items, LoadSummary* summary) {
  if (const auto* shards = std::get_if<std::vector<ExplicitShardConfig>>(&model.source)) {
    AddExplicit(model, *shards, items);
    return absl::OkStatus();
  }
  if (const auto* synthetic = std::get_if<SyntheticName>(&model.source)) {
    absl::StatusOr<std::vector<NamedWeight>> weights =
        SyntheticModel(synthetic->name, kSyntheticSeed);
    if (!weights.ok()) return weights.status();
    AddNamed(model, *std::move(weights), items);
    return absl::OkStatus();
  }
  const std::string& path = std::get<CheckpointPath>(model.source).path;
  absl::StatusOr<Checkpoint> checkpoint = ImportCheckpoint(path);
  if (!checkpoint.ok()) return checkpoint.status();
  for (const SkippedTensor& skipped : checkpoint->skipped) {
    summary->skipped.push_back({model.model, skipped.tensor, skipped.reason});
  }
  if (checkpoint->shards.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s holds no tensor that can be served (%d skipped)", path, checkpoint->skipped.size()));
  }
  AddNamed(model, std::move(checkpoint->shards), items);
  return absl::OkStatus();
}

// The devices' memory against the sum of what is to be resident; 0 = without a bound.
absl::Status CheckRoom(const std::vector<Item>& items, const std::vector<Backend*>& devices) {
  int64_t room = 0, needed = 0;
  for (const Backend* device : devices) {
    if (device->device().memory_bytes <= 0) return absl::OkStatus();
    room += device->device().memory_bytes;
  }
  for (const Item& item : items) {
    if (item.source != nullptr) needed += devices.front()->ResidentBytes(item.source->spec());
  }
  if (needed <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the shards need %d bytes, the devices have %d (memory_budget_bytes)", needed, room));
}

}  // namespace

std::vector<LoadSummary::Failed> FindLoadProblems(const std::vector<ModelConfig>& models,
                                                  const std::vector<Backend*>& devices) {
  std::vector<LoadSummary::Failed> problems;
  std::vector<Item> items;
  LoadSummary ignored;
  for (const ModelConfig& model : models) {
    if (absl::Status s = Expand(model, &items, &ignored); !s.ok()) {
      problems.push_back({absl::StrFormat("models/%s", model.model), s});
    }
  }
  for (const Item& item : items) {
    absl::Status status = item.status;
    if (status.ok()) status = CheckShardName(item.name);
    const bool known = std::any_of(devices.begin(), devices.end(), [&item](const Backend* device) {
      return device->device().id == item.device;
    });
    if (status.ok() && !item.device.empty() && !devices.empty() && !known) {
      status = absl::InvalidArgumentError(absl::StrFormat("no device '%s'", item.device));
    }
    if (!status.ok()) problems.push_back({item.name, status});
  }
  if (devices.empty()) return problems;
  if (absl::Status s = CheckRoom(items, devices); !s.ok()) problems.push_back({"models", s});
  return problems;
}

absl::StatusOr<Source> OpenConfigured(const WeightFileRef& file) {
  absl::StatusOr<Source> source = OpenTensor(file.path, file.tensor);
  if (!source.ok()) return source;
  return Cut(*std::move(source), file);
}

ShardLoader::ShardLoader(ShardStore& store, const std::vector<std::string>& weight_roots)
    : store_(store), roots_(weight_roots) {}

absl::StatusOr<Source> ShardLoader::Open(const WeightFileRef& file) const {
  const absl::StatusOr<std::string> path = roots_.Admit(file.path);
  if (!path.ok()) return path.status();
  if (file.tensor.empty()) return absl::InvalidArgumentError("no tensor is named");
  const absl::StatusOr<TensorCatalog> catalog = roots_.Read(*path);
  if (!catalog.ok()) return catalog.status();
  absl::StatusOr<Source> source = OpenTensor(*catalog, file.tensor);
  if (!source.ok()) return source;
  return Cut(*std::move(source), file);
}

LoadSummary ShardLoader::LoadAll(const std::vector<ModelConfig>& models,
                                 const std::function<void(const LoadProgress&)>& progress,
                                 const std::atomic<bool>& stop) {
  LoadSummary summary;
  std::vector<Item> items;
  const auto report = [&](const std::string& name, const absl::Status& status, int done,
                          absl::Duration took) {
    if (!status.ok()) summary.failed.push_back({name, status});
    if (progress) progress({done, static_cast<int>(items.size()), name, status, took});
  };
  for (const ModelConfig& model : models) {
    if (stop.load(std::memory_order_relaxed)) break;
    const absl::Time began = absl::Now();
    if (absl::Status s = Expand(model, &items, &summary); !s.ok()) {
      report(absl::StrFormat("models/%s", model.model), s, 0, absl::Now() - began);
    }
  }

  // Shards of a layer are named together in one call, which needs them on one device.
  std::map<std::pair<std::string, int>, std::string> device_of_layer;
  int done = 0;
  for (Item& item : items) {
    const absl::Time began = absl::Now();
    if (stop.load(std::memory_order_relaxed)) break;
    if (item.status.ok()) item.status = CheckShardName(item.name);
    if (!item.status.ok()) {
      // Listed as FAILED, so that clients and health checks see more than "unknown shard".
      if (absl::Status s = store_.NoteFailure(item.name, item.family, item.origin, item.status);
          !s.ok()) {
        item.status = s;
      }
      report(item.name, item.status, ++done, absl::Now() - began);
      continue;
    }
    const auto stoppable = std::make_shared<StoppableSource>(std::move(item.source), &stop);
    LoadRequest request{.name = item.name,
                        .family = item.family,
                        .source = stoppable,
                        .allow_nan = item.allow_nan,
                        .device = item.device,
                        .expect_hash = item.expect_hash};
    std::string* layer_device = nullptr;
    if (item.layer >= 0 && request.device.empty()) {
      layer_device = &device_of_layer[{item.model, item.layer}];
      request.device = *layer_device;
    }
    absl::StatusOr<std::shared_ptr<const Shard>> shard = store_.Load(request);
    if (!request.device.empty() && item.device.empty() &&
        absl::IsResourceExhausted(shard.status())) {
      request.device.clear();  // better apart than not at all
      shard = store_.Load(request);
    }
    stoppable->LetGo();
    if (stop.load(std::memory_order_relaxed) && absl::IsCancelled(shard.status())) break;
    if (shard.ok()) {
      ++summary.loaded;
      summary.resident_bytes += (*shard)->weight->resident_bytes();
      if (layer_device != nullptr) *layer_device = (*shard)->backend->device().id;
    }
    report(item.name, shard.status(), ++done, absl::Now() - began);
  }
  summary.stopped = stop.load(std::memory_order_relaxed);
  return summary;
}

}  // namespace fulcrum::service
