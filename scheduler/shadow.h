// Shadow check: a share of the batches of a non-exact arm has a slice of columns computed again by
// the CPU's exact arms, on a thread of low priority, and graded by kernels/numerics/budget.
// The audit (auditor.h) says whether an arm computed its own class's bits; this says whether the
// class is near enough to exact for these weights and activations. Of a canary's side the first
// batches are all checked (canary_split.h), then the share. Off the latency path: a bounded queue,
// dropped and counted when the thread is behind.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/backend.h"
#include "scheduler/bundle_store.h"
#include "scheduler/executor.h"
#include "scheduler/observer.h"

namespace fulcrum {

struct ShadowOptions {
  int64_t columns = 128;    // of a checked batch, from a multiple of 128: a multiple of it
  int max_rows = 32;        // of a checked batch; of more, as many neighbours
  size_t max_pending = 32;  // checks waiting; more are dropped and counted
  uint64_t seed = 1;        // which batches and columns
};

class Shadow {
 public:
  // Both outlive it; `bundles` may be null.
  Shadow(Observer& observer, BundleStore* bundles, ShadowOptions options);
  ~Shadow();

  // Called by a slot thread before a launch. True for one of the first batches of a canary's side:
  // its rows are ungraded from now on, and it will be offered with `must`, or withdrawn.
  bool Announce(const Batch& batch, std::span<const std::shared_ptr<const Shard>> shards,
                std::span<const LaunchTarget> targets);
  void Withdraw(const Batch& batch, std::span<const LaunchTarget> targets);
  // Called by a slot thread after a batch ran and was answered, once for each target, with the
  // batch's gathered activations [rows, K] and the target's output [rows, N]. Samples by the lever
  // shadow_rate unless `must`; copies what it needs.
  void Offer(const Batch& batch, Step step, bool must, const std::shared_ptr<const Shard>& shard,
             const LaunchTarget& target, const uint16_t* activations, const std::byte* output,
             DType output_type);

  void Flush();  // blocks until everything offered so far was graded; for tests and shutdown

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace fulcrum
