// Which shards this node holds: name -> resident weight, with its life (loading, serving, draining,
// failed) and versions. Loading runs off the calling path; a replaced shard's old version serves
// until the new one is ready and stays if loading fails. A call holds a shared_ptr to the version
// it started with, so memory goes only after its last call. Opening files is the caller's
// (service/shard_loader): the store takes WeightSources.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "kernels/backend.h"
#include "kernels/types.h"
#include "kernels/weights/weight_source.h"
#include "scheduler/clock.h"
#include "scheduler/name_map.h"

namespace fulcrum {

// One version of one shard, immutable once it serves.
struct Shard {
  std::string name;  // "models/{model}/shards/{shard}"
  Family family = Family::kOther;
  std::shared_ptr<const WeightSource> source;  // what audits recompute from
  std::shared_ptr<ResidentWeight> weight;
  Backend* backend = nullptr;
  std::string hash;         // content hash of the source (weight_source.h)
  uint64_t version = 0;     // rises with every load of this name, from 1
  uint64_t generation = 0;  // rises with every version that began to serve in this process
  uint64_t checksum = 0;    // of the resident bytes at load

  int64_t n() const { return weight->spec().n; }
  int64_t k() const { return weight->spec().k; }
  WeightFormat format() const { return weight->spec().format; }
};

// Of the version that began to serve last, of any name and store; 0: none did.
uint64_t LatestGeneration();

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
  std::optional<Family> family = {};  // none: a replaced shard's own, else kOther
  std::shared_ptr<const WeightSource> source;
  bool allow_nan = false;   // otherwise what CheckFinite finds refuses the load
  std::string device;       // "" = place on the backend with the most room
  std::string expect_hash;  // "" = any; otherwise a mismatch is DATA_LOSS
};

class ShardStore {
 public:
  // Backends outlive the store and its shards. `on_change` is called (without locks) after every
  // state change, in order, before the call that caused it returns: health and metrics hang on it.
  // A name's last state is draining; its end is not told. It may be empty.
  ShardStore(std::vector<Backend*> backends, std::function<void(const ShardInfo&)> on_change);
  ~ShardStore();

  // Blocks until the shard serves or failed. Checked in the order of what it costs: name and
  // device, size and scales, the device's memory, then the rows and the hash. ALREADY_EXISTS when
  // the name is held (one whose load failed is not); RESOURCE_EXHAUSTED beyond a device's memory,
  // before a row is read; INVALID_ARGUMENT for refused weights; DATA_LOSS for a wrong hash.
  absl::StatusOr<std::shared_ptr<const Shard>> Load(const LoadRequest& request);
  // Like Load for a held name; NOT_FOUND otherwise. The old version serves meanwhile and is kept on
  // failure, so for a moment the device's memory has to hold both. It stays on its device unless
  // the request names another. FAILED_PRECONDITION while another load, replace or unload of the
  // name is running.
  absl::StatusOr<std::shared_ptr<const Shard>> Replace(const LoadRequest& request);
  // What Load or Replace would answer by name and device alone: asked before files are opened.
  absl::Status CheckLoad(std::string_view name, std::string_view device) const;
  absl::Status CheckReplace(std::string_view name, std::string_view device) const;
  // New calls are refused at once; returns when no call holds the shard any more, or
  // DEADLINE_EXCEEDED after `patience` (the shard stays draining and goes with its last call).
  absl::Status Unload(std::string_view name, absl::Duration patience);

  // The version a new call uses. NOT_FOUND, or FAILED_PRECONDITION naming the state.
  absl::StatusOr<std::shared_ptr<const Shard>> Find(std::string_view name) const;
  std::vector<ShardInfo> List() const;  // by name
  std::vector<std::shared_ptr<const Shard>> Serving() const;

 private:
  struct Entry;
  class Memory;
  // Everything of a Shard but its version. `gone` is notified when its last holder let it go.
  absl::StatusOr<std::shared_ptr<Shard>> Prepare(
      const LoadRequest& request, const std::shared_ptr<absl::Notification>& gone) const;
  absl::StatusOr<std::shared_ptr<void>> Place(const LoadRequest& request, Backend** backend) const;
  absl::Status CheckFree(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckReplaceable(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Loads into an entry that is loading or replacing, and puts what came of it there.
  absl::StatusOr<std::shared_ptr<const Shard>> LoadInto(const std::shared_ptr<Entry>& entry,
                                                        const LoadRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null when no shard has the name, or its last call let it go after an unload.
  std::shared_ptr<Entry> Held(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Changed(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellChanges() ABSL_LOCKS_EXCLUDED(mu_);

  const std::vector<Backend*> backends_;
  const std::function<void(const ShardInfo&)> on_change_;
  const std::shared_ptr<Memory> memory_;  // outlives the store with the shards
  mutable absl::Mutex mu_;
  NameMap<std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  NameMap<uint64_t> last_version_ ABSL_GUARDED_BY(mu_);
  // Changes not yet told; one thread tells at a time, so that they arrive in order.
  std::deque<ShardInfo> changes_ ABSL_GUARDED_BY(mu_);
  std::thread::id teller_ ABSL_GUARDED_BY(mu_);
  absl::CondVar told_;
};

}  // namespace fulcrum
