// Makes the load of a benchmark and times it. What replies are worth is bench_checker.h's, counting
// bench_recorder.h's.
//
// Closed loop: `clients` callers, each sends its next call when its last one is answered. Open
// loop: a schedule of send times; latency counts from the intended time, also when the call had to
// wait because all callers were busy or the sender was late.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cli/arrivals.h"
#include "client/cli/bench_checker.h"
#include "client/cli/bench_options.h"
#include "client/cli/bench_recorder.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {

// One of the calls that are sent in turn.
struct BenchCall {
  std::shared_ptr<const v1::ProjectRequest> request;
  int payload = 0;
};

struct BenchResult {
  Tally tally;
  double seconds = 0;  // of the window
  double warmup_seconds = 0;
  int64_t warmup_calls = 0;
  double warmup_faults_per_call = 0;  // in the last quarter second of the warm-up
  double faults_per_call = 0;         // in the window
  double cpu_seconds = 0;             // of this process, in the window
  double latest_send_s = 0;           // open loop: the worst lateness of a send
};

class BenchLoad {
 public:
  BenchLoad(client::Client* client, const BenchOptions& options, std::vector<BenchCall> calls,
            ReplyChecker* checker, absl::Duration call_timeout);
  ~BenchLoad();  // waits for what is in flight

  // `progress` is called about twice a second with a line, or is empty.
  BenchResult Run(const std::function<void(const std::string&)>& progress);

 private:
  struct Caller;
  // Everything about one call in flight.
  struct Sent {
    absl::Time from;  // latency counts from here
    size_t call = 0;
    bool counted = false;
  };

  void Send(Caller& caller, absl::Time from);  // a busy caller's
  void Answered(Caller& caller, absl::StatusOr<v1::ProjectResponse> reply) ABSL_LOCKS_EXCLUDED(mu_);
  void Free(Caller& caller) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitQuiet() ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps the load going until `end`.
  void Drive(absl::Time end, const std::function<void(const std::string&)>& progress)
      ABSL_LOCKS_EXCLUDED(mu_);
  void WarmUp(const std::function<void(const std::string&)>& progress, BenchResult* result);
  void SendParked() ABSL_LOCKS_EXCLUDED(mu_);
  void SendDue(absl::Time until) ABSL_LOCKS_EXCLUDED(mu_);
  bool Sampled(size_t index) const;

  client::Client* const client_;
  const BenchOptions& options_;
  const std::vector<BenchCall> calls_;
  ReplyChecker* const checker_;
  const absl::Duration call_timeout_;
  const bool open_loop_;
  Recorder recorder_;
  std::vector<std::unique_ptr<client::ProjectStream>> streams_;
  std::vector<std::unique_ptr<Caller>> callers_;

  std::atomic<size_t> next_call_{0};
  std::atomic<int64_t> answered_{0};
  std::atomic<bool> measuring_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> window_end_ns_{0};  // since the epoch; set before measuring_

  Arrivals arrivals_;  // this and the next three: the sending thread's
  absl::Time schedule_start_;
  absl::Time next_due_;
  double latest_send_s_ = 0;

  absl::Mutex mu_;
  absl::CondVar changed_;                           // a caller was freed
  std::vector<Caller*> idle_ ABSL_GUARDED_BY(mu_);  // open loop: may take a call
  std::vector<Caller*> parked_
      ABSL_GUARDED_BY(mu_);            // closed loop: to be started, or after an error
  int busy_ ABSL_GUARDED_BY(mu_) = 0;  // callers in neither list
};

}  // namespace fulcrum::cli
