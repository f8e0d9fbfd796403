// Weights into the shard store: those of a start's plan, and files that callers name. Which weights
// a configuration means is load_plan.h's, which files callers reach weight_roots.h's, residency and
// versions scheduler/shard_store.h's, file formats kernels/weights'.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/weights/weight_source.h"
#include "scheduler/shard_store.h"
#include "service/load_plan.h"
#include "service/weight_roots.h"

namespace fulcrum::service {

struct LoadProgress {
  int done = 0, total = 0;  // shards
  std::string name;         // the shard just finished
  absl::Status status;
  absl::Duration took;
};

struct LoadSummary {
  struct Failed {
    std::string name;
    absl::Status status;
  };
  int loaded = 0;
  int64_t resident_bytes = 0;
  std::vector<Failed> failed;
  bool stopped = false;  // the stop flag was set; what is not in the lists was not tried
};

class ShardLoader {
 public:
  // The store outlives the loader. `weight_roots` are folders that exist (CheckConfig).
  ShardLoader(ShardStore& store, const std::vector<std::string>& weight_roots);

  // Loads every shard of a plan without problems, in order. One that fails (its rows are not
  // finite, its hash is another) is recorded, reported and listed as FAILED; the rest still loads.
  // `stop` is looked at between pieces of a weight, so that a signal does not wait for the end of a
  // large load.
  LoadSummary LoadAll(LoadPlan plan, const std::function<void(const LoadProgress&)>& progress,
                      const std::atomic<bool>& stop);

  // A caller's tensor, checked as far as headers and scales say. Errors are those of weight_roots.h
  // for the path, and of the file: INVALID_ARGUMENT for a tensor that is not served and for scales
  // that are not finite, unless `allow_nan`.
  absl::StatusOr<std::shared_ptr<const WeightSource>> Open(const WeightFileRef& file,
                                                           bool allow_nan = false) const;

 private:
  ShardStore& store_;
  const WeightRoots roots_;
};

}  // namespace fulcrum::service
