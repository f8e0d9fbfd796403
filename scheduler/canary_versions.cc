// See canary_versions.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_versions.h"

#include "absl/strings/str_format.h"

namespace fulcrum {
namespace {

constexpr size_t kHashDigits = 12;  // enough to tell two weights apart by eye

}  // namespace

WeightVersion VersionOf(const Shard& shard) {
  return {.shard = shard.name,
          .hash = shard.hash,
          .device = shard.backend->device().id,
          .version = shard.version};
}

WeightVersion VersionOf(const ShardInfo& info) {
  return {.shard = info.name, .hash = info.hash, .device = info.device, .version = info.version};
}

std::string Describe(const WeightVersion& version) {
  return absl::StrFormat("version %d (hash %s, %s)", version.version,
                         version.hash.substr(0, kHashDigits), version.device);
}

std::string Describe(const CanaryRestart& restart) {
  const std::string what =
      restart.after.shard.empty()
          ? absl::StrFormat("a lever that chooses arms was set (epoch %d)", restart.lever_epoch)
          : absl::StrFormat("%s: %s was replaced by %s", restart.after.shard,
                            Describe(restart.before), Describe(restart.after));
  return absl::StrFormat(
      "%s; before it %d canary against %d control batches had been compared, %d shadow checks "
      "passed",
      what, restart.canary_batches, restart.control_batches, restart.shadow_passed);
}

CanaryVersions::Standing CanaryVersions::Look(const Shard& shard, bool candidate) const {
  const auto known = known_.find(shard.name);
  if (known == known_.end()) return Standing::kNew;
  const uint64_t latest = known->second.version.version;
  if (shard.version < latest) return Standing::kPast;
  const bool known_so = candidate ? known->second.tried : known->second.ran;
  return shard.version == latest && known_so ? Standing::kRan : Standing::kNew;
}

std::optional<WeightVersion> CanaryVersions::Note(const WeightVersion& version) {
  const auto [at, fresh] = known_.try_emplace(version.shard, Known{.version = version});
  Known& known = at->second;
  if (fresh || version.version <= known.version.version) return std::nullopt;
  std::optional<WeightVersion> before;
  if (known.ran) before = std::move(known.version);
  known = {.version = version, .owed = known.tried || known.owed};
  return before;
}

void CanaryVersions::Ran(const Shard& shard, bool candidate) {
  Known& known = known_[shard.name];
  known.ran = true;
  if (!candidate) return;
  known.tried = true;
  known.owed = false;
}

void CanaryVersions::Gone(const std::string& shard) {
  if (const auto known = known_.find(shard); known != known_.end()) known->second.owed = false;
}

std::optional<WeightVersion> CanaryVersions::Untried() const {
  for (const auto& [name, known] : known_) {
    if (known.owed) return known.version;
  }
  return std::nullopt;
}

}  // namespace fulcrum
