// Holding answers back.
// SPDX-License-Identifier: Apache-2.0
#include "service/parting.h"

#include <cstddef>
#include <utility>

namespace fulcrum::service {
namespace {

constexpr size_t kMaxHeld = 65536;  // beyond, answers go out at once

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

void Parting::Release() {
  std::vector<std::function<void()>> held;
  {
    absl::MutexLock lock(&mu_);
    holding_ = false;
    held.swap(held_);
  }
  for (const auto& answer : held) answer();
}

uint64_t Parting::refused() const {
  absl::MutexLock lock(&mu_);
  return refused_;
}

}  // namespace fulcrum::service
