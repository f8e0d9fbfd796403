// Holding answers back.
// SPDX-License-Identifier: Apache-2.0
#include "service/parting.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/exceptions.h"

namespace fulcrum::service {
namespace {

constexpr size_t kMaxHeld = 65536;  // beyond, answers go out at once

constexpr absl::Duration kQuiet = absl::Milliseconds(100);
constexpr absl::Duration kQuietAtMost = absl::Seconds(1);
constexpr absl::Duration kGoodbye = absl::Milliseconds(50);
// Where somebody did call, a machine without time to spare is given so many times longer.
constexpr int kPatienceWithCallers = 4;

}  // namespace

void Parting::Answer(std::function<void()> answer) {
  {
    absl::MutexLock lock(&mu_);
    ++refused_;
    if (holding_ && held_.size() < kMaxHeld) {
      held_.push_back(std::move(answer));
      return;
    }
  }
  answer();
}

void Parting::Hold() {
  absl::MutexLock lock(&mu_);
  holding_ = true;
}

void Parting::AwaitQuiet(absl::Time limit) const {
  limit = std::min(limit, absl::Now() + kQuietAtMost);
  uint64_t seen = refused();
  const auto quiet = [&seen] { return (seen > 0 ? kPatienceWithCallers : 1) * kQuiet; };
  for (absl::Time last = absl::Now(); absl::Now() < limit && absl::Now() - last < quiet();) {
    absl::SleepFor(absl::Milliseconds(10));
    const uint64_t now = refused();
    if (now != seen) last = absl::Now();
    seen = now;
  }
}

void Parting::ReleaseSoon(absl::Duration at_most) {
  absl::SleepFor(std::min((refused() > 0 ? kPatienceWithCallers : 1) * kGoodbye, at_most));
  std::vector<std::function<void()>> held;
  {
    absl::MutexLock lock(&mu_);
    holding_ = false;
    held.swap(held_);
  }
  for (const auto& answer : held) (void)Caught(answer);
}

uint64_t Parting::refused() const {
  absl::MutexLock lock(&mu_);
  return refused_;
}

}  // namespace fulcrum::service
