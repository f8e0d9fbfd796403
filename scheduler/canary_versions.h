// What the evidence of a canary is about: the version of each weight that its batches ran on.
// Evidence of a version says nothing of the one that replaced it. Not thread-safe: canary.h has it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "scheduler/shard_store.h"

namespace fulcrum {

struct WeightVersion {
  std::string shard = {}, hash = {}, device = {};
  uint64_t version = 0;
};
WeightVersion VersionOf(const Shard& shard);
WeightVersion VersionOf(const ShardInfo& info);
// "version 2 (hash 0123456789ab, cpu:0)"
std::string Describe(const WeightVersion& version);

// Evidence that was put aside: what had been gathered until then.
struct CanaryRestart {
  absl::Time time = {};
  // Of the weight; without a shard: a lever that chooses arms was set, and `lever_epoch` says when.
  WeightVersion before = {}, after = {};
  uint64_t lever_epoch = 0;
  int64_t control_batches = 0, canary_batches = 0;  // that had been compared
  int64_t shadow_passed = 0;                        // checks of the canary's side
};
// One line: what changed, and how much evidence that was the end of.
std::string Describe(const CanaryRestart& restart);

class CanaryVersions {
 public:
  enum class Standing : uint8_t {
    kRan,   // it is the latest known, and evidence is of it
    kNew,   // it, or that batches of this side run on it, is not known yet: Note, then Ran
    kPast,  // a later version is known
  };
  Standing Look(const Shard& shard, bool candidate) const;
  // Notes a version that serves. Returns the one before it if batches ran on that.
  std::optional<WeightVersion> Note(const WeightVersion& version);
  // A batch ran on the version, which is the latest noted; `candidate`: on the canary's side.
  void Ran(const Shard& shard, bool candidate);
  // The weight was unloaded.
  void Gone(const std::string& shard);
  // A version that replaced one which the canary's side had run, and has not run there itself: the
  // canary says nothing of it.
  std::optional<WeightVersion> Untried() const;

 private:
  struct Known {
    WeightVersion version;
    bool ran = false, tried = false;  // at all; by the canary's side
    bool owed = false;                // the version before it was tried
  };
  absl::flat_hash_map<std::string, Known> known_;  // by shard
};

}  // namespace fulcrum
