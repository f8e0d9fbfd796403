// What a stop does with what is in flight, from the book (call_book.h): begins, waits for calls
// from before it, cuts off the rest, and leaves a line in the log for each of them. The steps
// around it, of gRPC and the node's parts, are server.cc's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/time.h"
#include "scheduler/scheduler.h"
#include "service/call_book.h"
#include "service/log.h"

namespace fulcrum::service {

struct Drain {
  CallBook& book;
  Scheduler& scheduler;
  const Logger& log;

  // New calls are late from now on; streams are told to end.
  void Begin(absl::Duration patience) const;
  // Until no call from before the stop is open, at `hard_stop` at the latest: what is open then is
  // answered with UNAVAILABLE. `before_launches` is called before the launches that run are
  // awaited, which has no bound.
  void EndCalls(absl::Time hard_stop, absl::FunctionRef<void()> before_launches) const;
  // Streams and watches that did not end by themselves.
  void EndStreams() const;
};

}  // namespace fulcrum::service
