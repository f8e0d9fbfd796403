// See canary_split.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_split.h"

#include "kernels/numerics/splitmix.h"

namespace fulcrum {

uint64_t StickyHash(uint64_t salt, std::string_view key) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the key, ...
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return SplitMix(hash ^ (salt + 1) * kSplitMixStep);  // ... then mixed
}

bool Assigned(uint64_t salt, std::string_view key, double share) {
  return static_cast<double>(StickyHash(salt, key) >> 11) * 0x1p-53 < share;
}

}  // namespace fulcrum
