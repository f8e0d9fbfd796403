// Live audit: a share of finished batches has a few random outputs recomputed on a CPU thread from
// the weight's source and compared bit for bit, for every class but w8a8, and but for mma on a
// device whose tensor cores do not follow the emulator's model; and a slow scrub compares checksums
// of the resident weights with those taken at load. A mismatch is an incident. Off the latency
// path: a bounded queue, dropped and counted when the audit thread is behind.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "scheduler/bundle_store.h"
#include "scheduler/call.h"
#include "scheduler/observer.h"
#include "scheduler/shard_store.h"

namespace fulcrum {

struct AuditorOptions {
  int outputs_per_batch = 4;  // random outputs of an audited batch
  size_t max_pending = 64;    // audits waiting; more are dropped and counted
  absl::Duration scrub_interval = absl::Minutes(10);  // one shard's checksum each; 0 = no scrub
  uint64_t seed = 1;                                  // which outputs are picked
};

class Auditor {
 public:
  // All outlive it; `bundles` may be null.
  Auditor(const ShardStore& shards, Observer& observer, AuditorOptions options,
          BundleStore* bundles = nullptr);
  ~Auditor();

  // Called by a slot thread after a batch ran, with the batch's gathered activations [m, K] and one
  // target's output [m, N]. Samples by `rate` (lever audit_rate); copies what it needs.
  void Offer(double rate, const std::shared_ptr<const Shard>& shard, const Arm& arm, int m,
             const uint16_t* activations, const std::byte* output, DType output_type,
             uint64_t lever_epoch);

  // Blocks until everything offered so far was judged. For tests and shutdown.
  void Flush();
  // Scrubs every serving shard once, now.
  void ScrubAll();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulcrum
