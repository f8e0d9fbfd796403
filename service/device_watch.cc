// See device_watch.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/device_watch.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace fulcrum::service {
namespace {

constexpr int kLooksInPatience = 8;
constexpr absl::Duration kMostBetween = absl::Seconds(1);

}  // namespace

std::string WhyStuck(const DeviceLiveness& device, absl::Time now, absl::Duration patience) {
  const std::string& id = device.backend->device().id;
  if (device.ended_loops > 0) {
    return absl::StrFormat("device %s: %d of %d loops that serve it have ended; restart the node",
                           id, device.ended_loops, device.loops);
  }
  if (now - device.stuck_since <= patience) return "";
  return absl::StrFormat(
      "device %s: no launch ended for %s (device_stall_seconds) although %d batches run and %d "
      "calls wait",
      id, absl::FormatDuration(absl::Trunc(now - device.stuck_since, absl::Seconds(1))),
      device.launching, device.waiting);
}

std::vector<AskedGauges::Sample> LastLaunches(const Scheduler& scheduler) {
  std::vector<AskedGauges::Sample> samples;
  for (const DeviceLiveness& device : scheduler.Liveness()) {
    const bool none = device.last_launch == absl::InfinitePast();
    samples.push_back({{{"device", device.backend->device().id}},
                       none ? 0 : absl::ToDoubleSeconds(device.last_launch - absl::UnixEpoch())});
  }
  return samples;
}

std::vector<AskedGauges::Sample> ServingDevices(const Scheduler& scheduler,
                                                const NodeHealth& health) {
  std::vector<AskedGauges::Sample> samples;
  for (const DeviceLiveness& device : scheduler.Liveness()) {
    const std::string& id = device.backend->device().id;
    samples.push_back({{{"device", id}}, health.DeviceServes(id) ? 1.0 : 0.0});
  }
  return samples;
}

DeviceWatch::DeviceWatch(const Scheduler& scheduler, NodeHealth& health, const Clock& clock,
                         const Logger& log, Observer& events, absl::Duration patience)
    : scheduler_(scheduler),
      health_(health),
      clock_(clock),
      log_(log),
      patience_(patience),
      every_(std::min(patience / kLooksInPatience, kMostBetween)),
      thread_([this, &events] {
        KeepRunning(
            [this] { Loop(); },
            [&events](const absl::Status& what) { events.OnException(Thrower::kWatch, what); });
      }) {}

DeviceWatch::~DeviceWatch() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    wake_.SignalAll();
  }
  thread_.join();
}

void DeviceWatch::Look() {
  const absl::Time now = clock_.Now();
  for (const DeviceLiveness& device : scheduler_.Liveness()) {
    const std::string& id = device.backend->device().id;
    const std::string why = WhyStuck(device, now, patience_);
    if (!health_.SetStuck(id, why)) continue;
    if (why.empty()) {
      log_.Info("device goes on", {{"device", id}});
    } else {
      log_.Error("device does not serve", {{"device", id}, {"why", why}});
    }
  }
}

void DeviceWatch::Loop() {
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      const absl::Time next = clock_.Now() + every_;
      while (!stopping_ && clock_.Now() < next) clock_.Wait(mu_, wake_, next);
      if (stopping_) return;
    }
    Look();
  }
}

}  // namespace fulcrum::service
