// A closed loop: a fixed number of calls in flight, each started when the one before it ended,
// timed one by one. What a call is, and how it is sent, is the caller's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace fulcrum::service {

// What one finished call tells the loop. `excluded_seconds` is taken off its latency: the part that
// is not what the loop wants to know, for example the kernel's.
struct CallEnd {
  bool ok = false;
  double excluded_seconds = 0;
};

// Starts the next call of a slot and returns; `done` may be run on any thread, once.
using CallDone = std::function<void(CallEnd)>;
using StartCall = std::function<void(int slot, CallDone done)>;

struct LoopOptions {
  int in_flight = 1;
  double seconds = 2;  // recorded
  // Warm-up lasts until a slice of it took almost no page faults, or this long.
  double max_warmup_seconds = 10;
};

struct LoopResult {
  int64_t errors = 0;
  double seconds = 0;  // recorded
  double warmup_seconds = 0;
  double faults_per_call = 0;     // minor page faults of the whole process, client and server
  std::vector<float> latency_us;  // ascending, of the successful calls
  double mean_excluded_us = 0;    // what was taken off them

  double Percentile(double q) const;  // microseconds; 0 without calls
  double CallsPerSecond() const { return seconds > 0 ? latency_us.size() / seconds : 0; }
};

// Runs until every call it started has ended. A slot whose call fails starts no other.
LoopResult RunClosedLoop(const LoopOptions& options, const StartCall& start);

// As fulcrumd does first: keeps what malloc has once taken, so that a message does not fault fresh
// pages in, and ends the search for lock cycles that Debian's Abseil makes. For main(),
// before any thread.
void SettleProcess();

}  // namespace fulcrum::service
