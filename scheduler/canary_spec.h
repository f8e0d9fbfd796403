// What an operator asks of a canary, as plain checked values. What it becomes is canary.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace fulcrum {

struct LeverChange {
  std::string lever, value;
};

// What is assigned to a side and stays there.
enum class CanaryUnit : uint8_t {
  kClient,      // all calls of a client
  kShard,       // all calls whose first shard it is
  kBatch,       // each batch anew, of calls under FASTEST alone: it changes a client's bits between
                // calls
  kConnection,  // all calls of one connection of a client: its connections may differ in bits, and
                // one that connects anew may get the other side
};
inline constexpr std::array kAllCanaryUnits = {CanaryUnit::kClient, CanaryUnit::kShard,
                                               CanaryUnit::kBatch, CanaryUnit::kConnection};
std::string_view Name(CanaryUnit unit);

enum class CanarySuccess : uint8_t { kHold, kPromote };
inline constexpr std::array kAllCanarySuccesses = {CanarySuccess::kHold, CanarySuccess::kPromote};
std::string_view Name(CanarySuccess success);

// What a guard on a ratio takes, besides infinity.
inline constexpr double kLeastRatio = 1.0, kMostRatio = 100;

// Clients of a side that are told apart.
inline constexpr int64_t kMostCanaryClients = 1024;

struct CanaryGuards {
  int64_t min_samples = 200;  // comparable batches a side before it can succeed
  int64_t min_clients = 1;  // clients a side that these batches are of, as far as they are counted
  // Reverts when the kernel stage is slower than this many times the control's, like with like.
  // Infinite: no such guard.
  double kernel_p50 = 1.02;
  double kernel_p99 = 1.05;
  // Reverts at one more than this, on the canary's side.
  int64_t max_shadow_failures = 0;
  int64_t max_failed_launches = 0;
  int64_t max_declines = 0;  // batches that ran another arm than the candidate asks for
  // Reverts when no heartbeat came for so long; infinite: none is needed.
  absl::Duration heartbeat = absl::InfiniteDuration();
};

struct CanarySpec {
  std::vector<LeverChange> changes = {};
  double share = 0;  // of the units, and so of the traffic (canary_share.h); 0 < share < 1
  CanaryUnit unit = CanaryUnit::kClient;
  bool allow_uneven = false;  // although units may bring far more traffic than the share
  absl::Duration duration = absl::Minutes(10);  // then it succeeded, or had too little to compare
  CanarySuccess on_success = CanarySuccess::kHold;
  CanaryGuards guards = {};
  std::string actor = {}, reason = {};
};

// INVALID_ARGUMENT "field: what is wrong and what is expected" for numbers outside their range.
// Levers and values are the store's to check.
absl::Status CheckCanary(const CanarySpec& spec);

}  // namespace fulcrum
