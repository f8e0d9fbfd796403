// How a node parts from callers that do not stop calling. What reaches gRPC between the moment it
// shuts down and the moment its client hears of that is reset, and the caller is told CANCELLED
// instead of UNAVAILABLE. So shortly before, refusals are held back: a caller that waits for its
// answer sends nothing. They go out once gRPC has told the clients to leave, and the next call is
// made elsewhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace fulcrum::service {

// Thread-safe. Answers are short and do not block.
class Parting {
 public:
  // For every refusal of a draining node: runs `answer` now, or when Release is called.
  void Answer(std::function<void()> answer);

  void Hold();
  // Until no refusal has been asked for for a moment: callers that wait for their answers are quiet
  // at once; those that send whatever comes back are not waited for.
  void AwaitQuiet(absl::Time limit) const;
  // Waits, no longer than `at_most`, until the word to leave that gRPC's shutdown sends is on every
  // connection; runs what was held. Later answers are not held.
  void ReleaseSoon(absl::Duration at_most);

 private:
  uint64_t refused() const;  // refusals so far

  mutable absl::Mutex mu_;
  bool holding_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::function<void()>> held_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum::service
