// The captured graphs of one slot's launches, least recently used out first. A graph starts in half
// the time of a single kernel and has the shortest gaps between its kernels. Making one takes as
// long as several launches, so only launches that recur get one. Not thread-safe.
//
// A graph holds addresses of the slot's buffers (call Clear when they change) and of weights. Keys
// contain the serials of weights. So the graph of an unloaded weight is never found again, whatever
// is loaded at its address.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/stream.h"

namespace fulcrum::cuda {

class GraphCache {
 public:
  // M, output type, the slot's variant, and the arm and weight of each target in order.
  using Key = absl::InlinedVector<uint64_t, 10>;
  static Key KeyOf(const Launch& launch, uint64_t variant);

  struct Entry {
    int uses = 0;          // before the graph was made
    bool refused = false;  // could not be captured; not tried again
    GraphExec graph;
  };

  explicit GraphCache(size_t capacity) : capacity_(capacity) {}

  // The key's entry, created when new; valid until the next call.
  Entry& Touch(const Key& key);
  void Clear();
  size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<std::pair<Key, Entry>>;  // the last used first

  size_t capacity_;
  Entries entries_;
  absl::flat_hash_map<Key, Entries::iterator> where_;
};

// Captures what `enqueue` puts into the stream, without running it, as a graph that is ready to
// launch.
absl::StatusOr<GraphExec> Capture(int device, cudaStream_t stream,
                                  absl::FunctionRef<absl::Status()> enqueue);

}  // namespace fulcrum::cuda
