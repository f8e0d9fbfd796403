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

// Why a call does not wait, for its caller and for the count.
struct Refusal {
  absl::Status status;
  RejectReason reason = RejectReason::kDraining;
};

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
