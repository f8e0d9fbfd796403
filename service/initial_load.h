// Loading of the configured models when a node starts: on a thread of its own, so that health,
// shards and levers can be asked meanwhile. Which weights a model has is load_plan.h's, how they
// become resident shard_loader.h's; this file runs it once, reports, and keeps how it ended.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "service/config.h"
#include "service/health.h"
#include "service/log.h"
#include "service/shard_loader.h"

namespace fulcrum::service {

class InitialLoad {
 public:
  // All references outlive the load. `on_failure` is told, from the load's thread, when a
  // configured shard cannot be served.
  InitialLoad(const Config& config, LoadPlan plan, ShardLoader& loader, NodeHealth& health,
              const Logger& log, std::function<void(const absl::Status& why)> on_failure);
  ~InitialLoad();  // stops

  void Start();  // at most once
  // Ends the load between two pieces of a weight. Await, and the load's own report, say CANCELLED.
  void RequestStop() { stop_.store(true); }
  void Join();
  // Blocks until the load has ended: OK, or why a shard is not resident. Start was called.
  absl::Status Await() const;

 private:
  void Run();
  // One line a reason at info, one a tensor at debug. Returns how many tensors were skipped.
  size_t ReportSkips() const;
  void Failed(absl::Status why);
  void End(absl::Status outcome);

  const Config& config_;
  LoadPlan plan_;  // the load's own once it runs
  ShardLoader& loader_;
  NodeHealth& health_;
  const Logger& log_;
  const std::function<void(const absl::Status& why)> on_failure_;

  std::atomic<bool> stop_{false};
  mutable absl::Mutex mu_;
  mutable absl::CondVar ended_;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mu_);  // once the load has ended
  std::thread thread_;
};

}  // namespace fulcrum::service
