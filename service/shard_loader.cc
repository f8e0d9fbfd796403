// See shard_loader.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/shard_loader.h"

#include <utility>

#include "absl/time/clock.h"
#include "service/stoppable_source.h"

namespace fulcrum::service {
namespace {

using Source = std::shared_ptr<const WeightSource>;

}  // namespace

ShardLoader::ShardLoader(ShardStore& store, const std::vector<std::string>& weight_roots)
    : store_(store), roots_(weight_roots) {}

absl::StatusOr<Source> ShardLoader::Open(const WeightFileRef& file, bool allow_nan) const {
  const absl::StatusOr<std::string> path = roots_.Admit(file.path);
  if (!path.ok()) return path.status();
  if (file.tensor.empty()) return absl::InvalidArgumentError("no tensor is named");
  const absl::StatusOr<TensorCatalog> catalog = roots_.Read(*path);
  if (!catalog.ok()) return catalog.status();
  return OpenExplicit(*catalog, file, allow_nan);
}

LoadSummary ShardLoader::LoadAll(LoadPlan plan,
                                 const std::function<void(const LoadProgress&)>& progress,
                                 const std::atomic<bool>& stop) {
  LoadSummary summary;
  const auto total = static_cast<int>(plan.shards.size());
  for (int done = 0; done < total; ++done) {
    PlannedShard& planned = plan.shards[static_cast<size_t>(done)];
    const absl::Time began = absl::Now();
    if (stop.load(std::memory_order_relaxed)) break;
    const auto source = std::make_shared<StoppableSource>(std::move(planned.source), &stop);
    LoadRequest request{.name = planned.name,
                        .family = planned.family,
                        .source = source,
                        .allow_nan = planned.allow_nan,
                        .device = planned.placed,
                        .expect_hash = planned.expect_hash};
    absl::StatusOr<std::shared_ptr<const Shard>> shard = store_.Load(request);
    if (absl::IsResourceExhausted(shard.status()) && request.device != planned.device) {
      request.device = planned.device;  // a caller was faster: another device may have room
      shard = store_.Load(request);
    }
    source->LetGo();
    if (stop.load(std::memory_order_relaxed) && absl::IsCancelled(shard.status())) break;
    if (shard.ok()) {
      ++summary.loaded;
      summary.resident_bytes += (*shard)->weight->resident_bytes();
    } else {
      summary.failed.push_back({planned.name, shard.status()});
    }
    if (progress) {
      progress({done + 1, total, planned.name, shard.status(), absl::Now() - began});
    }
  }
  summary.stopped = stop.load(std::memory_order_relaxed);
  return summary;
}

}  // namespace fulcrum::service
