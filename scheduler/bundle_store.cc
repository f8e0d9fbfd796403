// See bundle_store.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/bundle_store.h"

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace fulcrum {

numerics::Bundle BundleStore::About(const Shard& shard) {
  return {.device = shard.backend->device().id,
          .shard = shard.name,
          .shard_hash = shard.hash,
          .shard_version = shard.version,
          .origin = shard.source->origin(),
          .tensor = shard.source->spec().name,
          .family = shard.family,
          .format = shard.format(),
          .n = shard.n(),
          .k = shard.k()};
}

std::string BundleStore::Write(numerics::Bundle bundle) {
  if (folder_.empty()) return std::string();
  int number = 0;
  {
    absl::MutexLock lock(&mu_);
    if (files_ >= kMostFiles) return std::string();
    number = ++files_;
  }
  const absl::Time now = absl::Now();
  bundle.time = absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone());
  bundle.node = node_;
  const std::string path =
      absl::StrFormat("%s/%s-%s-%s-%d.bundle", folder_, bundle.found_by,
                      absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()), node_, number);
  return numerics::WriteBundle(bundle, path).ok() ? path : std::string();
}

}  // namespace fulcrum
