// How much may wait: the rows and payload bytes of all lanes together, whether one more call has
// room, what the observer hears of the sums, and the words for calls that may not wait or wait no
// longer. What waits, and in which order it leaves, is device_queue.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "scheduler/call.h"
#include "scheduler/observer.h"

namespace fulcrum {

// Why a call does not wait, or waits no longer, for its caller and for the count.
struct Refusal {
  absl::Status status;
  std::optional<RejectReason> reason;
};

// What takes a call out of the queue before it ran.
enum class LeaveBy : uint8_t { kDeadline, kCaller, kDrain, kDeviceLost };

// The one place that decides what such a call ends with, whichever timer or thread comes first: a
// deadline that has passed goes before every other cause.
Refusal WhyItLeaves(LeaveBy by, const Call& call, absl::Time submitted, absl::Time now);

// Whether a call that its caller ended at `now` ended because its time was over by the caller's own
// clock. That clock started earlier than the node's, and a timeout is rounded up on its way (gRPC
// keeps three digits of it): the caller's cancel comes before the node's deadline, by as much.
bool CallersTimeIsOver(absl::Time deadline, absl::Time began, absl::Time now);

absl::Status Expired(absl::Duration waited);
absl::Status DeviceLost(const Backend& backend);

class WaitingRoom {
 public:
  // The observer outlives the room.
  WaitingRoom(int64_t max_rows, int64_t max_bytes, Observer& observer)
      : max_rows_(max_rows), max_bytes_(max_bytes), observer_(observer) {}

  // RESOURCE_EXHAUSTED, with the bound that the call would break.
  std::optional<Refusal> WhyNoRoom(const Call& call) const;

  // The scheduler's lock orders these two.
  void Enter(const Call& call) { Change(call.rows, call.payload_bytes); }
  void Leave(const Call& call) { Change(-call.rows, -call.payload_bytes); }

  int64_t rows() const { return rows_.load(); }

  // Tells the observer, after a change, without a lock.
  void Report();

 private:
  void Change(int64_t rows, int64_t bytes);

  const int64_t max_rows_, max_bytes_;
  Observer& observer_;
  std::atomic<int64_t> rows_{0};
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> unreported_{0};  // changes that the observer was not told of
};

}  // namespace fulcrum
