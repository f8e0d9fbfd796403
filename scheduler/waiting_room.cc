// See waiting_room.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/waiting_room.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace fulcrum {

bool CallersTimeIsOver(absl::Time deadline, absl::Time began, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return false;
  constexpr absl::Duration kDelay =
      absl::Milliseconds(10);     // of threads and wires on a busy machine
  constexpr int kRounding = 100;  // a part in so many
  const absl::Duration budget = deadline - began;
  return deadline - now <= std::min(budget / 4, kDelay + budget / kRounding);
}

Refusal WhyItLeaves(LeaveBy by, const Call& call, absl::Time submitted, absl::Time now) {
  if (call.deadline <= now ||
      (by == LeaveBy::kCaller && CallersTimeIsOver(call.deadline, submitted, now))) {
    return {Expired(now - submitted), RejectReason::kExpired};
  }
  switch (by) {
    case LeaveBy::kDeviceLost:
      return {DeviceLost(*call.shards.front()->backend), std::nullopt};
    case LeaveBy::kDrain:
      return {absl::UnavailableError("the node drained before the call ran; call another node"),
              RejectReason::kDraining};
    case LeaveBy::kDeadline:
    case LeaveBy::kCaller:
      break;
  }
  return {absl::CancelledError("the caller cancelled in stage queue"), RejectReason::kCancelled};
}

absl::Status Expired(absl::Duration waited) {
  return absl::DeadlineExceededError(
      absl::StrFormat("deadline passed in stage queue after %s; the call did not run",
                      absl::FormatDuration(waited)));
}

absl::Status DeviceLost(const Backend& backend) {
  return absl::UnavailableError(absl::StrFormat(
      "device %s failed and takes no more launches; call another node", backend.device().id));
}

std::optional<Refusal> WaitingRoom::WhyNoRoom(const Call& call) const {
  const int64_t rows = rows_.load(std::memory_order_relaxed);
  const int64_t bytes = bytes_.load(std::memory_order_relaxed);
  if (rows + call.rows > max_rows_) {
    return Refusal{absl::ResourceExhaustedError(absl::StrFormat(
                       "queue is full: %d rows wait, the call has %d, the limit is %d; retry later",
                       rows, call.rows, max_rows_)),
                   RejectReason::kQueueRows};
  }
  if (bytes + call.payload_bytes > max_bytes_) {
    return Refusal{
        absl::ResourceExhaustedError(absl::StrFormat(
            "queue is full: %d payload bytes wait, the call has %d, the limit is %d; retry later",
            bytes, call.payload_bytes, max_bytes_)),
        RejectReason::kQueueBytes};
  }
  return std::nullopt;
}

// Only one thread at a time is here, so a load and a store do, and cost less than an addition.
void WaitingRoom::Change(int64_t rows, int64_t bytes) {
  rows_.store(rows_.load(std::memory_order_relaxed) + rows, std::memory_order_relaxed);
  bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

// One thread at a time tells the observer, always of the latest sums, and goes on while others
// change them: without a lock the last call still carries the last values.
void WaitingRoom::Report() {
  int64_t seen = unreported_.fetch_add(1) + 1;
  if (seen != 1) return;
  do {
    (void)Caught([this] { observer_.OnQueue(rows_.load(), bytes_.load()); });
  } while (!unreported_.compare_exchange_strong(seen, 0));
}

}  // namespace fulcrum
