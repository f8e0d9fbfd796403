// Where exceptions of ours end. Nothing of ours throws on purpose, yet memory can run out at any
// allocation, and a library may throw: a thread, a callback or a launch that lets one pass takes
// the process with it. Every place where foreign code calls ours, and every thread, goes through
// Caught or KeepRunning; what was thrown becomes a status, is counted and logged
// (Observer::OnException), and the node goes on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace fulcrum {

// What was running when something threw: a metric label.
enum class Thrower : uint8_t {
  kRpc,        // a callback that gRPC made
  kBatch,      // gathering, launching, replying to a batch
  kObserver,   // what hangs on Observer: metrics, events, logs
  kScheduler,  // choosing batches, expiring calls
  kChecker,    // audit, scrub, shadow check
  kCanary,     // the thread that ends canaries
  kWork,       // loads and other work that blocks
  kTls,        // looking at certificates
  kScrape,     // collecting metrics
  kWatch,      // watching over deadlines and devices
};
inline constexpr std::array kAllThrowers = {
    Thrower::kRpc,    Thrower::kBatch, Thrower::kObserver, Thrower::kScheduler, Thrower::kChecker,
    Thrower::kCanary, Thrower::kWork,  Thrower::kTls,      Thrower::kScrape,    Thrower::kWatch};
std::string_view Name(Thrower thrower);

// The exception that is being handled, as callers are told of it: RESOURCE_EXHAUSTED for memory
// that could not be had, else INTERNAL. Does not throw itself, also where no memory is left.
absl::Status StatusOfException() noexcept;

// What a caller is told where memory could not be had. Takes none.
absl::Status StatusForNoMemory() noexcept;

// Calls `body`; not OK: what it threw.
template <class Body>
absl::Status Caught(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return absl::OkStatus();
  } catch (...) {
    return StatusOfException();
  }
}

// Runs a thread's loop until it returns, and begins it again after it threw, which `caught` is
// told. False: the loop threw so often in so short a time that it was given up.
bool KeepRunning(absl::FunctionRef<void()> loop,
                 absl::FunctionRef<void(const absl::Status&)> caught) noexcept;

}  // namespace fulcrum
