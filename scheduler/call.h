// One Project call on its way through the node, and what comes back. The service makes a checked
// Call (shapes agree, shards found); the scheduler owns it from Submit to its one completion.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/ladder/arm.h"
#include "kernels/types.h"
#include "scheduler/shard_store.h"

namespace fulcrum {

// A step of a call's way; metric label and reply field.
enum class Stage : uint8_t { kAdmit, kQueue, kGather, kCopyIn, kKernel, kCopyOut, kReply };
inline constexpr std::array kAllStages = {Stage::kAdmit,  Stage::kQueue,  Stage::kGather,
                                          Stage::kCopyIn, Stage::kKernel, Stage::kCopyOut,
                                          Stage::kReply};
std::string_view Name(Stage stage);
using StageSeconds = std::array<double, kAllStages.size()>;

// Why a batch closed.
enum class CloseReason : uint8_t {
  kFull,         // no further waiting call fits max_batch_rows
  kDeviceIdle,   // a launch slot was free
  kWindow,       // the coalescing window ended
  kDeadline,     // a call's deadline would pass in the window
  kLeverChange,  // the lever epoch changed while the batch was held open
  kDrain,        // the node is stopping
};
inline constexpr std::array kAllCloseReasons = {CloseReason::kFull,        CloseReason::kDeviceIdle,
                                                CloseReason::kWindow,      CloseReason::kDeadline,
                                                CloseReason::kLeverChange, CloseReason::kDrain};
std::string_view Name(CloseReason reason);

// What computed a reply: the promise "every reply says what computed it".
struct Provenance {
  std::vector<const Arm*> arms;  // one per shard
  int batch_rows = 0;            // rows of the whole batch
  uint64_t lever_epoch = 0;
  CloseReason close_reason = CloseReason::kDeviceIdle;
  StageSeconds stages{};  // admit and reply are the service's to fill
};

// Result of a call. On OK, outputs[i] is shard i's [rows, N_i] in the call's output type, tightly
// packed, valid only during Complete (the bytes are the launch slot's).
struct CallResult {
  absl::Status status;  // not OK: nothing else is set, except stages of the way it came
  std::vector<std::span<const std::byte>> outputs;
  Provenance provenance;
};

// Where a call is on its way through the scheduler.
enum class CallPlace : uint8_t {
  kOutside,  // not submitted yet, or refused by Submit
  kWaiting,
  kRunning,  // picked: Gather is next, and Complete in any case
  kLeft,     // taken out without having run; Complete is next
};

struct Waiting;

// Implemented by the service (one object per RPC) and by tests.
class Call {
 public:
  virtual ~Call() = default;

  // Set before Submit, constant after.
  std::vector<std::shared_ptr<const Shard>> shards;  // same K, same device; at least one
  int rows = 0;                                      // decode: 1..32
  Step step = Step::kDecode;
  Policy policy = Policy::kBatchInvariant;
  DType output_type = DType::kBf16;  // kBf16 or kF32
  std::string client;                // fairness and canary key: peer identity
  uint64_t connection = 0;           // tells connections of one client apart; 0: they are one
  std::string id;                    // the caller's, for logs
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time arrived;         // when its last byte was here; queue time counts from Submit
  int64_t payload_bytes = 0;  // activations plus outputs, for the byte bound

  // Writes the activations as BF16 [rows, K], tightly packed. Called once, by a slot thread.
  virtual void Gather(uint16_t* out) = 0;
  // Called exactly once for every submitted call, on a slot thread or on the thread that cancelled
  // or drained; no scheduler lock is held. The scheduler forgets the call before it.
  virtual void Complete(const CallResult& result) = 0;

  // The scheduler's to write, anybody's to read: no step back is ever seen.
  std::atomic<CallPlace> place{CallPlace::kOutside};
  Waiting* waiting = nullptr;  // the scheduler's, under its lock
};

}  // namespace fulcrum
