// See canary_split.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_split.h"

#include <algorithm>

#include "kernels/numerics/splitmix.h"
#include "scheduler/call.h"

namespace fulcrum {

uint64_t KeyHash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

uint64_t StickyHash(uint64_t salt, uint64_t key) {
  return SplitMix(key ^ (salt + 1) * kSplitMixStep);
}

bool Assigned(uint64_t salt, uint64_t key, double share) {
  return static_cast<double>(StickyHash(salt, key) >> 11) * 0x1p-53 < share;
}

uint64_t UnitKey(CanaryUnit unit, const Call& call) {
  switch (unit) {
    case CanaryUnit::kShard:
      return KeyHash(call.shards.front()->name);
    case CanaryUnit::kConnection:
      return KeyHash(call.client) ^ SplitMix(call.connection);
    case CanaryUnit::kClient:
    case CanaryUnit::kBatch:
      break;
  }
  return KeyHash(call.client);
}

bool CanaryValve::CountFirst(std::span<const uint64_t> generations) {
  bool known = true, first = false;
  for (const uint64_t generation : generations) {
    if (generation <= known_) continue;
    known = false;
    absl::MutexLock lock(&mu_);
    int64_t& count = later_[generation];
    first |= count < kFirstBatches;
    count = std::min(count + 1, kFirstBatches);
  }
  return known ? batches.fetch_add(1) < kFirstBatches : first;
}

}  // namespace fulcrum
