// Which shards this node holds: name -> resident weight, with its life (loading, serving, draining,
// failed) and versions. Loading runs off the calling path; a replaced shard's old version serves
// until the new one is ready and stays if loading fails. A call holds a shared_ptr to the version it
// started with, so memory goes only after its last call.
// Opening files is the caller's (service/shard_loader): the store takes WeightSources.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "kernels/types.h"
#include "kernels/weights/weight_source.h"
#include "scheduler/clock.h"

namespace fulcrum {

// One version of one shard, immutable once it serves.
struct Shard {
  std::string name;  // "models/{model}/shards/{shard}"
  Family family = Family::kOther;
  std::shared_ptr<const WeightSource> source;  // what audits recompute from
  std::shared_ptr<ResidentWeight> weight;
  Backend* backend = nullptr;
  std::string hash;       // content hash of the source (weight_source.h)
  uint64_t version = 0;   // rises with every load of this name, from 1
  uint64_t checksum = 0;  // of the resident bytes at load

  int64_t n() const { return weight->spec().n; }
  int64_t k() const { return weight->spec().k; }
  WeightFormat format() const { return weight->spec().format; }
};

enum class ShardState : uint8_t { kLoading, kServing, kReplacing, kDraining, kFailed };
std::string_view Name(ShardState state);

// What ListShards shows of one name.
struct ShardInfo {
  std::string name;
  Family family = Family::kOther;
  WeightSpec spec;
  std::string device, hash, origin;
  int64_t resident_bytes = 0;
  uint64_t version = 0;
  ShardState state = ShardState::kLoading;
  absl::Status error;  // why the last load failed, if it did
};

struct LoadRequest {
  std::string name;
  Family family = Family::kOther;
  std::shared_ptr<const WeightSource> source;
  bool allow_nan = false;       // otherwise NaN codes and non-finite scales refuse the load
  std::string device;           // "" = place on the backend with the most room
  std::string expect_hash;      // "" = any; otherwise a mismatch is DATA_LOSS
};

class ShardStore {
 public:
  // Backends outlive the store. `on_change` is called (without locks) after every state change with
  // the shard's name and whether it serves: health and metrics hang on it.
  ShardStore(std::vector<Backend*> backends, std::function<void(const ShardInfo&)> on_change);

  // Blocks until the shard serves or failed. ALREADY_EXISTS when the name is held; RESOURCE_EXHAUSTED
  // beyond a device's memory; INVALID_ARGUMENT for refused weights; DATA_LOSS for a wrong hash.
  absl::StatusOr<std::shared_ptr<const Shard>> Load(const LoadRequest& request);
  // Like Load for a held name; NOT_FOUND otherwise. The old version serves meanwhile and is kept on
  // failure. FAILED_PRECONDITION while another load, replace or unload of the name is running.
  absl::StatusOr<std::shared_ptr<const Shard>> Replace(const LoadRequest& request);
  // New calls are refused at once; returns when no call holds the shard any more, or
  // DEADLINE_EXCEEDED after `patience` (the shard stays draining and goes with its last call).
  absl::Status Unload(std::string_view name, absl::Duration patience);

  // The version a new call uses. NOT_FOUND, or FAILED_PRECONDITION naming the state.
  absl::StatusOr<std::shared_ptr<const Shard>> Find(std::string_view name) const;
  std::vector<ShardInfo> List() const;  // by name
  std::vector<std::shared_ptr<const Shard>> Serving() const;

 private:
  struct Entry;
  absl::StatusOr<std::shared_ptr<const Shard>> Prepare(const LoadRequest& request);
  void Changed(const ShardInfo& info) const;

  const std::vector<Backend*> backends_;
  const std::function<void(const ShardInfo&)> on_change_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum
