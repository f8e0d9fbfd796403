// The choice, in two pure steps: first which numerics classes a call may use, then which arm of
// them runs. No clock, no device call, no environment, no lock. The same functions serve the
// executor, ExplainLadder, the tests and the benchmark.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/ladder/arm.h"
#include "kernels/ladder/levers.h"
#include "kernels/types.h"

namespace fulcrum {

// A set of numerics classes, one bit each.
struct ClassSet {
  uint8_t bits = 0;
  bool has(NumericsClass c) const { return bits >> static_cast<int>(c) & 1; }
  void add(NumericsClass c) { bits = static_cast<uint8_t>(bits | 1 << static_cast<int>(c)); }
  friend bool operator==(ClassSet, ClassSet) = default;
};

// What is asked, apart from M. Fixed for a (shard, epoch): a class never changes with M.
struct LadderQuery {
  WeightFormat format = WeightFormat::kFp8Block128;
  Family family = Family::kOther;
  Step step = Step::kDecode;
  Policy policy = Policy::kBatchInvariant;
  uint32_t device_caps = 0;  // DeviceCap bits of the device that holds the shard
};

// Step 1. EXACT: {exact}. BATCH_INVARIANT: the class of the first open arm that, together with
// other open arms of its class, serves every M of the step; else {exact}. FASTEST: every class with
// an open, runnable arm, exact included; at M = 1..4 of decode FASTEST prefers exact (the seed's
// ladder).
ClassSet AllowedClasses(std::span<const Arm> ladder, const LadderQuery& query,
                        const LeverSet& levers);

// Why an arm above the chosen one did not run.
enum class Decline : uint8_t {
  kRuns,        // this is the one
  kBelow,       // a rung above it serves
  kFormat,      // other weight format
  kStep,        // does not serve this step
  kRows,        // M outside its range
  kLever,       // its lever is closed for the family
  kClass,       // its class is not allowed by the policy
  kCapability,  // the device cannot run it
};
std::string_view Name(Decline reason);

// Step 2. The first row that serves, or null when none does. `m` is the batch's rows.
const Arm* PickArm(std::span<const Arm> ladder, const LadderQuery& query, ClassSet allowed,
                   const LeverSet& levers, int m);

// One row per arm of the query's format, in ladder order, saying what step 2 decided about it.
struct RungVerdict {
  const Arm* arm = nullptr;
  Decline verdict = Decline::kBelow;
};
std::vector<RungVerdict> Explain(std::span<const Arm> ladder, const LadderQuery& query,
                                 const LeverSet& levers, int m);

// An arm that the levers asked for but that could not run (closed by capability): what
// fulcrum_declined_total counts. Null when nothing asked-for was declined.
const Arm* AskedButDeclined(std::span<const Arm> ladder, const LadderQuery& query,
                            const LeverSet& levers, int m);

// Rows of piece i when m rows run on an arm, in order; sums to m. Full pieces and a rest: of 17 to
// 31 rows on an arm of 16 two even pieces took up to a fifth longer (bench/results/h200.md).
std::vector<int> Pieces(const Arm& arm, int m);

}  // namespace fulcrum
