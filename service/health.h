// Whether the node, each device and each shard can take calls: one small state, from which the
// standard gRPC health service is kept and by which calls are refused. Names on the health service:
// "" and "fulcrum.v1.ProjectionService" for the whole node, and each shard's resource name.
// A device serves unless it was stopped or does not move on. A shard serves when its weights are
// resident and its device serves; the node serves when its configured shards are loaded, it does
// not drain, and some device serves. A shard that is loading never takes the node down.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/health_check_service_interface.h"
#include "kernels/backend.h"
#include "scheduler/shard_store.h"

namespace fulcrum::service {

class NodeHealth {
 public:
  // Backends outlive the health.
  explicit NodeHealth(const std::vector<Backend*>& backends);

  // Publishes the state so far, and every change from now on until Detach. `service` is the
  // server's.
  void Attach(grpc::HealthCheckServiceInterface* service);
  void Detach();

  void SetLoaded();                     // the configured shards are resident
  void OnShard(const ShardInfo& info);  // after every change of a shard
  // Stops taking calls for a device, for good (a fault, or wrong bits). Whether it was serving.
  bool StopDevice(std::string_view device);
  // Why a device does not move on, or nothing when it does. Calls for it are still taken: they run
  // once it does. Whether it did the other before.
  bool SetStuck(std::string_view device, std::string_view why);
  void Drain();  // for good

  bool draining() const { return draining_.load(std::memory_order_acquire); }
  bool serving() const;
  bool loaded() const;  // SetLoaded was called
  // Why the node does not serve, in words; empty while it does.
  std::string WhyNot() const;
  bool DeviceServes(std::string_view device) const;
  // UNAVAILABLE while draining or when the device is stopped. On every call's path.
  absl::Status CheckNode() const;
  absl::Status CheckDevice(const Backend* backend) const;

 private:
  struct Device {
    explicit Device(const Backend* b) : backend(b) {}
    const Backend* backend;
    std::atomic<bool> stopped{false};
    std::string stuck;  // why, under mu_
  };
  struct ShardHealth {
    bool resident = false;
    std::string device;
  };

  // Why not; empty when it serves.
  std::string WhyNotDevice(const Device& device) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Serves(std::string_view device) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool NodeServes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishNode() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PublishShard(const std::string& name, const ShardHealth& shard)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::vector<std::unique_ptr<Device>> devices_;  // fixed at construction
  std::atomic<bool> draining_{false};

  mutable absl::Mutex mu_;
  grpc::HealthCheckServiceInterface* service_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool loaded_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, ShardHealth> shards_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum::service
