// Looks again and again at whether devices move on (DeviceLiveness), and tells health: one that has
// work and completes no launch for the configured time does not serve until it completes one again,
// one that lost a loop does not serve any more. A device without work is well however long.
// A GPU on which a launch hangs is given up by its backend sooner (kernels/cuda); this is for what
// no backend sees: a driver call, a lock or a thread that does not come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/clock.h"
#include "scheduler/observer.h"
#include "scheduler/scheduler.h"
#include "service/health.h"
#include "service/log.h"
#include "service/metrics_asked.h"

namespace fulcrum::service {

// Why the device cannot be said to serve; empty when it can.
std::string WhyStuck(const DeviceLiveness& device, absl::Time now, absl::Duration patience);

// Samples of fulcrum_device_last_launch_timestamp_seconds and fulcrum_device_serving.
std::vector<AskedGauges::Sample> LastLaunches(const Scheduler& scheduler);
std::vector<AskedGauges::Sample> ServingDevices(const Scheduler& scheduler,
                                                const NodeHealth& health);

class DeviceWatch {
 public:
  // All outlive the watch. `patience`: infinite for lost loops alone.
  DeviceWatch(const Scheduler& scheduler, NodeHealth& health, const Clock& clock, const Logger& log,
              Observer& events, absl::Duration patience);
  ~DeviceWatch();

  // Looks once, now, as its thread does by itself several times within `patience`.
  void Look();

 private:
  void Loop();

  const Scheduler& scheduler_;
  NodeHealth& health_;
  const Clock& clock_;
  const Logger& log_;
  const absl::Duration patience_, every_;
  absl::Mutex mu_;
  absl::CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last
};

}  // namespace fulcrum::service
