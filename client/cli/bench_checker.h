// Whether replies are right. A reference is the reply to the same activations that was seen first
// in its numerics class (for class exact: asked for under policy EXACT before the run): every later
// reply of that class, weights and lever epoch must have the same bytes. Afterwards the oracle
// recomputes a sample of each reference from the weights themselves, where they can be had: a file,
// or the seed of a synthetic shard. w8a8 promises no bits and is not compared.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/bench_recorder.h"
#include "fulcrum/v1/projection_service.pb.h"
#include "fulcrum/v1/shard_service.pb.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::cli {

class ReplyChecker {
 public:
  // Thread-safe. `payload` identifies the activations; `references` gets those it was equal to.
  Match Check(int payload, const v1::ProjectResponse& response, std::vector<int>* references)
      ABSL_LOCKS_EXCLUDED(mu_);

  struct OracleResult {
    std::vector<int> rejected;  // references with a wrong element
    int64_t elements = 0;       // recomputed
    std::string first;          // where the first difference is
  };
  // Compares `sample` elements of each recorded reference of this shard. `activations[payload]` are
  // BF16 bits [rows, K]; outputs are [rows, N] in `output_type`.
  absl::StatusOr<OracleResult> CompareWithOracle(
      const std::string& shard, const WeightSource& source,
      const std::vector<std::vector<uint16_t>>& activations, DType output_type, int sample) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Shard, payload, class, weights' hash; epoch 0 for class exact, whose bits no lever may change.
  using Key = std::tuple<std::string, int, int, std::string, uint64_t>;
  struct Reference {
    int id;
    std::string bytes;
  };
  mutable absl::Mutex mu_;
  std::map<Key, Reference> references_ ABSL_GUARDED_BY(mu_);  // grow only: values do not move
};

// The weights of a shard whose origin says that they are synthetic, checked by content hash.
// NOT_FOUND when they are not synthetic, or not as this build makes them.
absl::StatusOr<std::shared_ptr<const WeightSource>> SyntheticSourceOf(const v1::Shard& shard);

}  // namespace fulcrum::cli
