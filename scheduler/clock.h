// The only source of time in the scheduler: tests hold it still.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace fulcrum {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const { return absl::Now(); }
};

}  // namespace fulcrum
