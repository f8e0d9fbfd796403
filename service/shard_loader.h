// Turns what a configuration or a caller names (a checkpoint, a synthetic model, a tensor of a
// file) into weights in the shard store. Which files callers reach is weight_roots.h's, residency and
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
#include "service/config.h"
#include "service/weight_roots.h"

namespace fulcrum::service {

// A tensor of a file, possibly a part of it (half-open ranges, an end of 0 = the whole extent).
struct WeightFileRef {
  std::string path, tensor;
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 0;
};

struct LoadProgress {
  int done = 0, total = 0;  // shards, of all models that could be opened
  std::string name;         // the shard just finished, or the model that could not be opened
  absl::Status status;
  absl::Duration took;
};

struct LoadSummary {
  struct Failed {
    std::string name;  // a shard, or a model when its source could not be opened
    absl::Status status;
  };
  struct Skipped {
    std::string model, tensor, reason;
  };
  int loaded = 0;
  int64_t resident_bytes = 0;
  std::vector<Failed> failed;
  std::vector<Skipped> skipped;  // tensors of checkpoints that are not served, with reasons
  bool stopped = false;          // the stop flag was set; what is not in the lists was not tried
};

// What LoadAll would fail with before it reads a weight: models and tensors that cannot be opened,
// devices that are not there, and more bytes than the devices have. None of `devices`: not checked.
std::vector<LoadSummary::Failed> FindLoadProblems(const std::vector<ModelConfig>& models,
                                                  const std::vector<Backend*>& devices);

class ShardLoader {
 public:
  // The store outlives the loader. `weight_roots` are folders that exist (CheckConfig).
  ShardLoader(ShardStore& store, const std::vector<std::string>& weight_roots);

  // Loads every shard of every model, in order. What fails is recorded, reported and, for explicit
  // shards, listed as FAILED; the rest still loads. `stop` is looked at between pieces of a weight,
  // so that a signal does not wait for the end of a large load.
  LoadSummary LoadAll(const std::vector<ModelConfig>& models,
                      const std::function<void(const LoadProgress&)>& progress,
                      const std::atomic<bool>& stop);

  // A caller's tensor. Errors are those of weight_roots.h for the path, and of the file.
  absl::StatusOr<std::shared_ptr<const WeightSource>> Open(const WeightFileRef& file) const;

 private:
  ShardStore& store_;
  const WeightRoots roots_;
};

// A configured file, which the operator chose: no root rule. Slices as asked.
absl::StatusOr<std::shared_ptr<const WeightSource>> OpenConfigured(const WeightFileRef& file);

}  // namespace fulcrum::service
