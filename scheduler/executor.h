// Runs one closed batch at a time in one launch slot: gather, choose an arm per shard, launch,
// reply, offer to the audit. One slot thread owns it. Which calls make the batch is the
// scheduler's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "scheduler/call.h"
#include "scheduler/checkers.h"
#include "scheduler/clock.h"
#include "scheduler/lane.h"
#include "scheduler/lever_store.h"
#include "scheduler/observer.h"

namespace fulcrum {

// Calls that run together: same shards, step, output type and numerics classes. Reused.
struct Batch {
  std::vector<TakenCall> calls;
  int rows = 0;
  CloseReason close_reason = CloseReason::kDeviceIdle;
  std::shared_ptr<const LeverSnapshot> levers;  // from pick to reply
  // At the pick: the live snapshot, which is `levers` unless the canary's candidate is, and the
  // canary under way, if any: null for a batch that is of neither side, because it was held back or
  // has calls from before the canary (device_queue.cc).
  std::shared_ptr<const LeverSnapshot> control;
  std::shared_ptr<const CanarySplit> canary;
  absl::Time picked;

  bool candidate() const { return canary != nullptr && levers == canary->candidate; }
};

class Executor {
 public:
  // References outlive the executor.
  Executor(Backend& backend, Observer& observer, Checkers checkers, const Clock& clock);

  // None of these throws: what did within them is told to the observer.

  // Computes the batch's outputs into the slot. Not OK: what every call of the batch is told.
  absl::Status Launch(const Batch& batch);
  // Completes every call, with the outputs of the last Launch or with its status; lets them go.
  void Reply(Batch& batch, const absl::Status& status);
  // Offers the outputs of the last successful Launch to the checkers; lets the shards go.
  void Audit(const Batch& batch, const absl::Status& status);

 private:
  absl::Status Fault(const absl::Status& fault);  // as callers are told of it
  absl::Status Choose(const Batch& batch);
  absl::Status Gather(const Batch& batch);
  void Tell(const Batch& batch);
  void TellBatch(const Batch& batch, const absl::Status& status);
  void OfferToCheckers(const Batch& batch);
  // Calls `body`; what it throws becomes `*status`, unless that is null.
  template <class Body>
  void Guard(absl::Status* status, Body&& body);

  Backend& backend_;
  Observer& observer_;
  const Checkers checkers_;
  const Clock& clock_;
  const std::unique_ptr<LaunchSlot> slot_;

  // Of the batch at hand; kept for their memory.
  std::vector<std::shared_ptr<const Shard>> shards_;
  Step step_ = Step::kDecode;
  DType output_type_ = DType::kBf16;
  std::vector<LaunchTarget> targets_;
  std::vector<const Arm*> ran_, control_, asked_;  // one a target
  std::vector<const Call*> calls_;
  std::vector<uint64_t> clients_;  // one a call
  std::vector<size_t> output_bytes_;
  bool must_check_ = false;  // by the shadow
  StageSeconds stages_{};    // of the whole batch; queue is per call
  CallResult result_;
};

}  // namespace fulcrum
