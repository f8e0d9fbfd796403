// See shard_store.h. Reading, checking and hashing weights is kernels/weights'; memory layout is
// the backend's.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/shard_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/placement.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {

struct ShardStore::Entry {
  ShardInfo info;
  std::shared_ptr<const Shard> serving;            // null unless serving or replacing
  std::shared_ptr<const absl::Notification> gone;  // of the version that serves or drains

  bool ended() const { return info.state == ShardState::kDraining && gone->HasBeenNotified(); }
};

// Resident bytes promised or in use per device, versions that only calls still hold included.
class ShardStore::Memory {
 public:
  explicit Memory(const std::vector<Backend*>& backends) {
    for (const Backend* backend : backends) uses_.push_back({.backend = backend, .used = 0});
  }

  // Chooses a device and promises it to the weight.
  absl::StatusOr<size_t> Reserve(const WeightSpec& spec, std::string_view device) {
    absl::MutexLock lock(&mu_);
    const absl::StatusOr<size_t> chosen = ChooseDevice(uses_, spec, device);
    if (chosen.ok()) uses_[*chosen].used += uses_[*chosen].backend->ResidentBytes(spec);
    return chosen;
  }
  void Release(size_t device, int64_t bytes) {
    absl::MutexLock lock(&mu_);
    uses_[device].used -= bytes;
  }

 private:
  absl::Mutex mu_;
  std::vector<DeviceUse> uses_ ABSL_GUARDED_BY(mu_);
};

namespace {

// Of the process: what asks which versions came after a moment (canary_split.h) knows no store.
std::atomic<uint64_t> latest_generation{0};

absl::Status NotFound(std::string_view name) {
  return absl::NotFoundError(absl::StrFormat("no shard %s is loaded", Quoted(name)));
}

absl::Status WrongState(const ShardInfo& info, std::string_view wanted) {
  const std::string why =
      info.error.ok() ? "" : absl::StrFormat(" (%s)", std::string(info.error.message()));
  return absl::FailedPreconditionError(
      absl::StrFormat("shard %s is %s%s; %s", info.name, Name(info.state), why, wanted));
}

absl::Status InShard(std::string_view name, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrFormat("shard %s: %s", name, std::string(status.message())));
}

absl::Status CheckRequest(const LoadRequest& request) {
  if (request.name.empty()) {
    return absl::InvalidArgumentError("the shard has no name; expected models/M/shards/S");
  }
  if (request.source == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("shard %s has no weights", request.name));
  }
  if (!request.expect_hash.empty() && !IsContentHash(request.expect_hash)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("shard %s: expect_hash %s; expected 64 lower-case hex digits", request.name,
                        Quoted(request.expect_hash)));
  }
  return absl::OkStatus();
}

void Describe(const Shard& shard, ShardInfo& info) {
  info.family = shard.family;
  info.spec = shard.weight->spec();
  info.device = shard.backend->device().id;
  info.hash = shard.hash;
  info.origin = shard.source->origin();
  info.resident_bytes = shard.weight->resident_bytes();
  info.version = shard.version;
}

}  // namespace

ShardStore::ShardStore(std::vector<Backend*> backends,
                       std::function<void(const ShardInfo&)> on_change)
    : backends_(std::move(backends)),
      on_change_(std::move(on_change)),
      memory_(std::make_shared<Memory>(backends_)) {}

// Out of line: Entry and Memory are complete here only.
ShardStore::~ShardStore() = default;

absl::StatusOr<std::shared_ptr<const Shard>> ShardStore::Load(const LoadRequest& request) {
  if (absl::Status s = CheckRequest(request); !s.ok()) return s;
  auto entry = std::make_shared<Entry>();
  entry->info.name = request.name;
  entry->info.family = request.family.value_or(Family::kOther);
  entry->info.spec = request.source->spec();
  entry->info.origin = request.source->origin();
  entry->info.state = ShardState::kLoading;
  {
    absl::MutexLock lock(&mu_);
    if (absl::Status s = CheckFree(request.name); !s.ok()) return s;
    entries_[request.name] = entry;
    Changed(*entry);
  }
  return LoadInto(entry, request);
}

uint64_t LatestGeneration() { return latest_generation.load(); }

absl::StatusOr<std::shared_ptr<const Shard>> ShardStore::Replace(const LoadRequest& request) {
  if (absl::Status s = CheckRequest(request); !s.ok()) return s;
  LoadRequest placed = request;
  std::shared_ptr<Entry> entry;
  {
    absl::MutexLock lock(&mu_);
    if (absl::Status s = CheckReplaceable(request.name); !s.ok()) return s;
    entry = Held(request.name);
    // Calls may name it together with others of its device.
    if (placed.device.empty()) placed.device = entry->info.device;
    // Levers go by family, so new weights alone must not change it.
    if (!placed.family.has_value()) placed.family = entry->info.family;
    entry->info.state = ShardState::kReplacing;
    Changed(*entry);
  }
  return LoadInto(entry, placed);
}

absl::StatusOr<std::shared_ptr<const Shard>> ShardStore::LoadInto(
    const std::shared_ptr<Entry>& entry, const LoadRequest& request) {
  TellChanges();
  const auto gone = std::make_shared<absl::Notification>();
  const absl::StatusOr<std::shared_ptr<Shard>> prepared = Prepare(request, gone);
  std::shared_ptr<const Shard> old;  // let go after the lock
  {
    absl::MutexLock lock(&mu_);
    ShardInfo& info = entry->info;
    info.error = prepared.status();
    if (prepared.ok()) {
      (*prepared)->version = ++last_version_[request.name];
      (*prepared)->generation = latest_generation.fetch_add(1) + 1;
      Describe(**prepared, info);
      old = std::exchange(entry->serving, *prepared);
      entry->gone = gone;
    }
    info.state = entry->serving != nullptr ? ShardState::kServing : ShardState::kFailed;
    Changed(*entry);
  }
  TellChanges();
  if (!prepared.ok()) return prepared.status();
  return std::shared_ptr<const Shard>(*prepared);
}

absl::Status ShardStore::CheckLoad(std::string_view name, std::string_view device) const {
  {
    absl::MutexLock lock(&mu_);
    if (absl::Status s = CheckFree(name); !s.ok()) return s;
  }
  const absl::Status status = CheckDevice({backends_.data(), backends_.size()}, device);
  return status.ok() ? status : InShard(name, status);
}

absl::Status ShardStore::CheckReplace(std::string_view name, std::string_view device) const {
  {
    absl::MutexLock lock(&mu_);
    if (absl::Status s = CheckReplaceable(name); !s.ok()) return s;
  }
  const absl::Status status = CheckDevice({backends_.data(), backends_.size()}, device);
  return status.ok() ? status : InShard(name, status);
}

absl::Status ShardStore::CheckFree(std::string_view name) const {
  const std::shared_ptr<Entry> held = Held(name);
  if (held == nullptr || held->info.state == ShardState::kFailed) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrFormat("shard %s is %s; replace it or unload it first",
                                                  name, Name(held->info.state)));
}

absl::Status ShardStore::CheckReplaceable(std::string_view name) const {
  const std::shared_ptr<Entry> held = Held(name);
  if (held == nullptr) return NotFound(name);
  if (held->info.state == ShardState::kServing) return absl::OkStatus();
  return WrongState(held->info, "only a serving shard can be replaced");
}

absl::StatusOr<std::shared_ptr<void>> ShardStore::Place(const LoadRequest& request,
                                                        Backend** backend) const {
  const WeightSpec& spec = request.source->spec();
  const absl::StatusOr<size_t> chosen = memory_->Reserve(spec, request.device);
  if (absl::IsResourceExhausted(chosen.status())) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("shard %s: %s; unload a shard, or raise the configuration's "
                        "memory_budget_bytes. A replacement needs room beside the old version, "
                        "which serves until the new one is ready",
                        request.name, std::string(chosen.status().message())));
  }
  if (!chosen.ok()) return InShard(request.name, chosen.status());
  *backend = backends_[*chosen];
  const int64_t bytes = backends_[*chosen]->ResidentBytes(spec);
  return std::shared_ptr<void>(nullptr, [memory = memory_, place = *chosen, bytes](void*) {
    memory->Release(place, bytes);
  });
}

absl::StatusOr<std::shared_ptr<Shard>> ShardStore::Prepare(
    const LoadRequest& request, const std::shared_ptr<absl::Notification>& gone) const {
  const auto in_shard = [&](const absl::Status& status) { return InShard(request.name, status); };
  const WeightSource& source = *request.source;
  if (absl::Status s = CheckServable(source, request.allow_nan); !s.ok()) return in_shard(s);
  Backend* backend = nullptr;
  absl::StatusOr<std::shared_ptr<void>> memory = Place(request, &backend);
  if (!memory.ok()) return memory.status();
  if (!request.allow_nan) {
    if (absl::Status s = CheckFinite(source); !s.ok()) return in_shard(s);
  }
  std::string hash;
  if (absl::Status s = ContentHash(source, &hash); !s.ok()) return in_shard(s);
  if (!request.expect_hash.empty() && hash != request.expect_hash) {
    return absl::DataLossError(
        absl::StrFormat("shard %s: content hash of %s is %s, expected %s; the file is damaged or "
                        "another one",
                        request.name, source.origin(), hash, request.expect_hash));
  }
  absl::StatusOr<std::shared_ptr<ResidentWeight>> weight = backend->Upload(source);
  if (!weight.ok()) return in_shard(weight.status());
  source.ReleasePages();
  const absl::StatusOr<uint64_t> checksum = (*weight)->Checksum();
  if (!checksum.ok()) return in_shard(checksum.status());

  // With the last holder go the weight, then its promise of memory; then whoever unloads is told.
  std::shared_ptr<Shard> shard(new Shard, [memory = *std::move(memory), gone](Shard* s) mutable {
    delete s;
    memory.reset();
    gone->Notify();
  });
  shard->name = request.name;
  shard->family = request.family.value_or(Family::kOther);
  shard->source = request.source;
  shard->weight = *std::move(weight);
  shard->backend = backend;
  shard->hash = std::move(hash);
  shard->checksum = *checksum;
  return shard;
}

absl::Status ShardStore::Unload(std::string_view name, absl::Duration patience) {
  std::shared_ptr<Entry> entry;
  std::shared_ptr<const Shard> released;
  std::shared_ptr<const absl::Notification> gone;
  {
    absl::MutexLock lock(&mu_);
    entry = Held(name);
    if (entry == nullptr) return NotFound(name);
    switch (entry->info.state) {
      case ShardState::kFailed:
        entries_.erase(std::string(name));
        return absl::OkStatus();
      case ShardState::kLoading:
      case ShardState::kReplacing:
        return WrongState(entry->info, "unload it when that has ended");
      case ShardState::kServing:
        entry->info.state = ShardState::kDraining;
        released = std::move(entry->serving);
        Changed(*entry);
        break;
      case ShardState::kDraining:
        break;  // an earlier unload lost its patience; wait on
    }
    gone = entry->gone;
  }
  TellChanges();
  released.reset();
  if (!gone->WaitForNotificationWithTimeout(patience)) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "shard %s is still held by calls after %s; it takes no new ones and goes with its last",
        name, absl::FormatDuration(patience)));
  }
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(std::string(name));
  if (it != entries_.end() && it->second == entry) entries_.erase(it);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Shard>> ShardStore::Find(std::string_view name) const {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<Entry> entry = Held(name);
  if (entry == nullptr) return NotFound(name);
  if (entry->serving == nullptr) return WrongState(entry->info, "it takes no calls");
  return entry->serving;
}

std::vector<ShardInfo> ShardStore::List() const {
  std::vector<ShardInfo> infos;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [name, entry] : entries_) {
      if (!entry->ended()) infos.push_back(entry->info);
    }
  }
  std::sort(infos.begin(), infos.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return infos;
}

std::vector<std::shared_ptr<const Shard>> ShardStore::Serving() const {
  std::vector<std::shared_ptr<const Shard>> shards;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [name, entry] : entries_) {
      if (entry->serving != nullptr) shards.push_back(entry->serving);
    }
  }
  std::sort(shards.begin(), shards.end(),
            [](const auto& a, const auto& b) { return a->name < b->name; });
  return shards;
}

std::shared_ptr<ShardStore::Entry> ShardStore::Held(std::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() || it->second->ended() ? nullptr : it->second;
}

void ShardStore::Changed(const Entry& entry) {
  if (on_change_) changes_.push_back(entry.info);
}

// Returns when every change made before is told, unless called from within `on_change` itself.
void ShardStore::TellChanges() {
  const std::thread::id self = std::this_thread::get_id();
  mu_.Lock();
  while (teller_ != self && (teller_ != std::thread::id() || !changes_.empty())) {
    if (teller_ != std::thread::id()) {
      told_.Wait(&mu_);
      continue;
    }
    teller_ = self;
    const ShardInfo info = std::move(changes_.front());
    changes_.pop_front();
    mu_.Unlock();
    on_change_(info);
    mu_.Lock();
    teller_ = std::thread::id();
    told_.SignalAll();
  }
  mu_.Unlock();
}

}  // namespace fulcrum
