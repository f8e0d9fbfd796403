// The launches of one slot that were captured as graphs. A graph starts in half the time of a
// single kernel and runs its kernels with the shortest gaps, but making one takes as long as
// several launches: it is made for what recurs, and what recurs least is forgotten first. Of one
// thread.
//
// A graph holds addresses: of the slot's buffers (Clear when they change) and of weights. Keys name
// weights by their serial, so the graph of an unloaded weight can never be found again, whatever is
// loaded in its place; it goes when it is the oldest.
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
  // M exactly, output type, what else the slot captures differently, and each target's arm and
  // weight, in order.
  using Key = absl::InlinedVector<uint64_t, 10>;
  static Key KeyOf(const Launch& launch, uint64_t variant);

  struct Entry {
    int uses = 0;          // before there was a graph
    bool refused = false;  // could not be captured; not tried again
    GraphExec graph;
  };

  explicit GraphCache(size_t capacity) : capacity_(capacity) {}

  // The key's entry, made when it is new; valid until the next call here.
  Entry& Touch(const Key& key);
  void Clear();
  size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<std::pair<Key, Entry>>;  // the last used first

  size_t capacity_;
  Entries entries_;
  absl::flat_hash_map<Key, Entries::iterator> where_;
};

// What `enqueue` puts into the stream, as a graph that is ready to be launched; nothing of it runs.
absl::StatusOr<GraphExec> Capture(int device, cudaStream_t stream,
                                  absl::FunctionRef<absl::Status()> enqueue);

}  // namespace fulcrum::cuda
