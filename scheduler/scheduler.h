// When rows run, and together with which. Calls wait in lanes; a free launch slot takes a batch;
// slot threads gather, choose the arm, launch, and complete. There is one more of them than launch
// slots, so that a batch launches while the replies of the last one go out. A free slot takes what
// waits at once; while slots are busy rows coalesce by themselves. Closing rules are pure functions
// in batching.h, a lane is lane.h, one batch's run is executor.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "scheduler/call.h"
#include "scheduler/checkers.h"
#include "scheduler/clock.h"
#include "scheduler/lever_store.h"
#include "scheduler/observer.h"
#include "scheduler/waiting_room.h"

namespace fulcrum {

// What Submit may do when a launch slot is free and nothing else waits for the device.
enum class OnIdle : uint8_t {
  kHandOver,  // a slot thread runs the call; Submit returns at once
  kRunHere,   // the calling thread runs it, which saves a wake-up: Complete is called before Submit
              // returns. For callers that may block for a decode launch; one at a time does.
};

struct SchedulerOptions {
  int64_t max_queue_rows = 4096;               // waiting, all lanes together
  int64_t max_queue_bytes = int64_t{1} << 30;  // payload bytes waiting, all lanes together
  int max_prefill_rows = 2048;                 // rows of one prefill batch
  int slots_per_device = 0;                    // launch slots; 0 = the backend's preference
  absl::Duration max_lane_wait = absl::Milliseconds(50);  // beyond it a lane goes before deadlines
};

// Whether a device moves on. One with work (`waiting` or `launching`) on which no launch ends
// hangs; an idle one may be so for ever.
struct DeviceLiveness {
  const Backend* backend = nullptr;
  int64_t waiting = 0;                            // calls in the queue
  int launching = 0;                              // batches
  absl::Time last_launch = absl::InfinitePast();  // end of the last one that succeeded
  // Since when it has work and no launch has ended; the infinite future while it has none.
  absl::Time stuck_since = absl::InfiniteFuture();
  // Threads that take batches or expire calls, and how many of them have ended, which is for good.
  int loops = 0, ended_loops = 0;
};

// What Pause holds back, for tests and drains: nothing launches while paused, calls still queue.
class Scheduler {
 public:
  // All references outlive the scheduler. Slot threads start here.
  Scheduler(const std::vector<Backend*>& backends, LeverStore& levers, Observer& observer,
            Checkers checkers, const Clock& clock, SchedulerOptions options);
  ~Scheduler();  // drains without patience

  // Takes the call iff it returns OK (then `call` is null and Complete will be called once).
  // RESOURCE_EXHAUSTED at a queue bound, UNAVAILABLE while draining, DEADLINE_EXCEEDED when already
  // expired. Blocks on a device only where `on_idle` allows it.
  absl::Status Submit(std::shared_ptr<Call>& call, OnIdle on_idle = OnIdle::kHandOver);

  // Completes the call if it still waits, with what WhyItLeaves (waiting_room.h) says; a call
  // already picked completes normally. Returns where the call was; kWaiting: this completed it.
  CallPlace Cancel(const Call* call, LeaveBy by = LeaveBy::kCaller);

  // Batches wait for no company from now on: the node is stopping. Calls are still taken.
  void Hurry();
  // Refuses new calls, lets waiting ones run until `patience`, then completes what still waits with
  // UNAVAILABLE. Returns when no call is left. Idempotent.
  void Drain(absl::Duration patience);

  void Pause();
  void Resume();

  // Every device, in no order.
  std::vector<DeviceLiveness> Liveness() const;
  int64_t queued_rows() const;
  int64_t inflight_calls() const;  // submitted and not completed

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulcrum
