// Keeps what the scheduler tells, for tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/observer.h"

namespace fulcrum::test {

class RecordingObserver : public Observer {
 public:
  struct Totals {
    int64_t launches = 0, rows = 0, calls = 0, faults = 0;
    int64_t queue_rows = 0, queue_bytes = 0;  // as last told
    std::map<CloseReason, int64_t> closes;
    std::map<RejectReason, int64_t> rejects;
    std::map<std::string, int64_t> declined;  // "asked>ran:reason"
    std::map<AuditResult, int64_t> audits;
    std::map<std::string, absl::Status> audit_errors;  // by shard, the last
    std::vector<Incident> incidents;
    std::vector<double> queued_seconds;
  };

  Totals totals() const {
    absl::MutexLock lock(&mu_);
    return totals_;
  }

  void OnLaunch(const LaunchEvent& event) override {
    absl::MutexLock lock(&mu_);
    ++totals_.launches;
    totals_.rows += event.rows;
    ++totals_.closes[event.close_reason];
  }
  void OnCallQueued(const Arm&, Phase, double seconds) override {
    absl::MutexLock lock(&mu_);
    ++totals_.calls;
    totals_.queued_seconds.push_back(seconds);
  }
  void OnReject(RejectReason reason) override {
    absl::MutexLock lock(&mu_);
    ++totals_.rejects[reason];
  }
  void OnDeclined(const Arm& asked, const Arm& ran, std::string_view reason) override {
    absl::MutexLock lock(&mu_);
    ++totals_.declined[std::string(asked.name) + ">" + std::string(ran.name) + ":" +
                       std::string(reason)];
  }
  void OnQueue(int64_t rows, int64_t bytes) override {
    absl::MutexLock lock(&mu_);
    totals_.queue_rows = rows;
    totals_.queue_bytes = bytes;
  }
  void OnAudit(const Arm&, AuditResult result) override {
    absl::MutexLock lock(&mu_);
    ++totals_.audits[result];
  }
  void OnAuditError(std::string_view shard, const absl::Status& why) override {
    absl::MutexLock lock(&mu_);
    totals_.audit_errors[std::string(shard)] = why;
  }
  void OnIncident(const Incident& incident) override {
    absl::MutexLock lock(&mu_);
    totals_.incidents.push_back(incident);
  }
  void OnDeviceFault(std::string_view, const absl::Status&) override {
    absl::MutexLock lock(&mu_);
    ++totals_.faults;
  }

 private:
  mutable absl::Mutex mu_;
  Totals totals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum::test
