// State and publication of health.
// SPDX-License-Identifier: Apache-2.0
#include "service/health.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fulcrum::service {
namespace {

constexpr char kServiceName[] = "fulcrum.v1.ProjectionService";

}  // namespace

NodeHealth::NodeHealth(const std::vector<Backend*>& backends) {
  for (const Backend* backend : backends) devices_.push_back(std::make_unique<Device>(backend));
}

void NodeHealth::Attach(grpc::HealthCheckServiceInterface* service) {
  absl::MutexLock lock(&mu_);
  service_ = service;
  PublishAll();
}

void NodeHealth::Detach() {
  absl::MutexLock lock(&mu_);
  service_ = nullptr;
}

void NodeHealth::SetLoaded() {
  absl::MutexLock lock(&mu_);
  loaded_ = true;
  PublishNode();
}

void NodeHealth::OnShard(const ShardInfo& info) {
  absl::MutexLock lock(&mu_);
  ShardHealth& shard = shards_[info.name];
  shard.resident = info.state == ShardState::kServing || info.state == ShardState::kReplacing;
  shard.device = info.device;
  PublishShard(info.name, shard);
}

bool NodeHealth::StopDevice(std::string_view device) {
  bool was_serving = false;
  absl::MutexLock lock(&mu_);
  for (const auto& d : devices_) {
    if (d->backend->device().id == device) {
      was_serving |= !d->stopped.exchange(true, std::memory_order_acq_rel);
    }
  }
  if (was_serving) PublishAll();
  return was_serving;
}

bool NodeHealth::SetStuck(std::string_view device, std::string_view why) {
  absl::MutexLock lock(&mu_);
  bool changed = false;
  for (const auto& d : devices_) {
    if (d->backend->device().id != device) continue;
    changed |= d->stuck.empty() != why.empty();
    d->stuck = why;
  }
  if (changed) PublishAll();
  return changed;
}

void NodeHealth::Drain() {
  draining_.store(true, std::memory_order_release);
  absl::MutexLock lock(&mu_);
  PublishAll();
}

bool NodeHealth::serving() const {
  absl::MutexLock lock(&mu_);
  return NodeServes();
}

bool NodeHealth::loaded() const {
  absl::MutexLock lock(&mu_);
  return loaded_;
}

std::string NodeHealth::WhyNot() const {
  absl::MutexLock lock(&mu_);
  if (NodeServes()) return "";
  if (draining()) return "the node is draining";
  if (!loaded_) return "the configured shards are not loaded yet";
  std::string why;
  for (const auto& device : devices_) {
    absl::StrAppend(&why, why.empty() ? "" : "; ", WhyNotDevice(*device));
  }
  return why;
}

bool NodeHealth::DeviceServes(std::string_view device) const {
  absl::MutexLock lock(&mu_);
  return Serves(device);
}

absl::Status NodeHealth::CheckNode() const {
  if (!draining()) return absl::OkStatus();
  return absl::UnavailableError("the node is draining; call another node");
}

absl::Status NodeHealth::CheckDevice(const Backend* backend) const {
  for (const auto& device : devices_) {
    if (device->backend != backend) continue;
    if (!device->stopped.load(std::memory_order_acquire)) break;
    return absl::UnavailableError(absl::StrCat("device ", backend->device().id,
                                               " was stopped after a fault; call another node"));
  }
  return absl::OkStatus();
}

std::string NodeHealth::WhyNotDevice(const Device& device) const {
  if (device.stopped.load(std::memory_order_acquire)) {
    return absl::StrCat("device ", device.backend->device().id, " was stopped after a fault");
  }
  return device.stuck;
}

bool NodeHealth::Serves(std::string_view device) const {
  return std::all_of(devices_.begin(), devices_.end(), [&](const auto& d) {
    return d->backend->device().id != device || WhyNotDevice(*d).empty();
  });
}

bool NodeHealth::NodeServes() const {
  const bool device = std::any_of(devices_.begin(), devices_.end(),
                                  [&](const auto& d) { return WhyNotDevice(*d).empty(); });
  return loaded_ && device && !draining();
}

void NodeHealth::PublishAll() {
  PublishNode();
  for (const auto& [name, shard] : shards_) PublishShard(name, shard);
}

void NodeHealth::PublishNode() {
  if (service_ == nullptr) return;
  const bool serves = NodeServes();
  service_->SetServingStatus("", serves);
  service_->SetServingStatus(kServiceName, serves);
}

void NodeHealth::PublishShard(const std::string& name, const ShardHealth& shard) {
  if (service_ == nullptr) return;
  service_->SetServingStatus(name, shard.resident && !draining() && Serves(shard.device));
}

}  // namespace fulcrum::service
