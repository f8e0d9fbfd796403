// The calls that wait for the same shards, step and output type: one queue per client, shared
// fairly by rows, and within it the client's connections (behind a proxy or on a Unix socket they
// may be clients that nothing tells apart) share its part fairly too. Not thread-safe: the
// scheduler's lock guards it. When a batch closes is batching.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "kernels/ladder/ladder.h"
#include "scheduler/call.h"
#include "scheduler/indexed_heap.h"
#include "scheduler/lever_store.h"
#include "scheduler/name_map.h"

namespace fulcrum {

class Lane;

// Calls of equal keys may share a batch. Shards are named by their version's address, which the
// lane's calls keep alive; an empty lane must be dropped.
struct LaneKey {
  absl::InlinedVector<const Shard*, 4> shards;
  Step step = Step::kDecode;
  DType output_type = DType::kBf16;
  uint64_t canary = 0;  // the side (batching.h)

  LaneKey(const Call& call, uint64_t canary_id);
  friend bool operator==(const LaneKey&, const LaneKey&) = default;
  template <class H>
  friend H AbslHashValue(H h, const LaneKey& key) {
    return H::combine(std::move(h), key.shards, key.step, key.output_type, key.canary);
  }
};

struct LaneClient;

// One waiting call.
struct Waiting {
  std::shared_ptr<Call> call;
  absl::Time submitted;
  uint64_t seq = 0;    // rises from call to call, over all lanes
  uint64_t under = 0;  // the canary under way when it came; 0: none
  Lane* lane = nullptr;
  LaneClient* client = nullptr;
  int64_t turn = 0;  // among its client's calls: rows that its connection was given before it
  size_t arrival_place = 0, deadline_place = 0, turn_place = 0;
};

// One client's calls in a lane. `served` counts the rows it was given on a clock that all clients
// share: a client that comes back after a pause starts from the lane's present, not from old
// credit. Its connections share a clock of its own in the same way ("start-time fair queueing",
// Goyal, Vin and Cheng 1996): calls of one connection keep their order.
struct LaneClient {
  struct EarlierTurn {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.turn != b.turn ? a.turn < b.turn : a.seq < b.seq;
    }
  };
  IndexedHeap<Waiting, EarlierTurn, &Waiting::turn_place> calls;
  std::unordered_map<uint64_t, int64_t> next_turn;  // by connection; none: `turn_now`
  int64_t turn_now = 0;                             // of the call that left last
  int64_t served = 0;
  size_t place = 0;
};

// A call that left its lane.
struct TakenCall {
  std::shared_ptr<Call> call;
  absl::Time submitted;
  uint64_t under = 0;  // as in Waiting
};

class Lane {
 public:
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  bool empty() const { return arrivals_.empty(); }
  Waiting* oldest() const { return arrivals_.top(); }
  Waiting* most_urgent() const { return deadlines_.top(); }
  // The call that the next batch starts with: of the client that had least, the first of the
  // connection that had least.
  Waiting* first() const { return clients_.top()->calls.top(); }
  int64_t rows(Policy policy) const { return rows_[static_cast<size_t>(policy)]; }

  Waiting* Add(std::shared_ptr<Call> call, absl::Time submitted, uint64_t seq, uint64_t under);
  TakenCall Remove(Waiting* waiting);

  // Appends the next batch to `out`: the first call, however large, then further calls of clients
  // in fair order while they fit `max_rows` and `may_join(first, other)`. A client's calls keep the
  // order that its connections have, so one that may not join holds its client back. Returns true
  // when the batch is full: no row is free, or a call that may join was left for want of room.
  bool Take(int64_t max_rows, absl::FunctionRef<bool(const Call&, const Call&)> may_join,
            std::vector<TakenCall>& out);

  // Numerics classes of a policy's calls under a snapshot, one set per shard of the lane;
  // remembered until asked for another epoch. The lane must not be empty.
  using Classes = absl::InlinedVector<ClassSet, 4>;
  const Classes& ClassesFor(Policy policy, const LeverSnapshot& levers);

  // Makes an empty lane as good as new, apart from its memory.
  void Reset();

  // What the device queue remembers with a lane.
  std::optional<LaneKey> key;  // in the queue's map
  uint64_t canary = 0;         // of its key
  uint64_t draw = 0;           // of its next batch
  absl::Time last_run = absl::InfinitePast();
  uint64_t last_turn = 0;   // turn of its last run
  uint64_t held_epoch = 0;  // lever epoch under which the open batch was first held; 0: not held

 private:
  struct EarlierArrival {
    bool operator()(const Waiting& a, const Waiting& b) const { return a.seq < b.seq; }
  };
  struct EarlierDeadline {
    bool operator()(const Waiting& a, const Waiting& b) const {
      if (a.call->deadline != b.call->deadline) return a.call->deadline < b.call->deadline;
      return a.seq < b.seq;
    }
  };
  struct LessServed {
    bool operator()(const LaneClient& a, const LaneClient& b) const {
      if (a.served != b.served) return a.served < b.served;
      return a.calls.top()->seq < b.calls.top()->seq;
    }
  };

  // Where the connection's next turn stands; makes room for it, and may allocate.
  static int64_t& NextTurn(LaneClient& client, uint64_t connection);
  LaneClient* ClientOf(const std::string& name);
  void DropIdleClients();

  std::deque<Waiting> nodes_;  // grows to the most calls that ever waited here at once
  std::vector<Waiting*> free_nodes_;
  IndexedHeap<Waiting, EarlierArrival, &Waiting::arrival_place> arrivals_;
  IndexedHeap<Waiting, EarlierDeadline, &Waiting::deadline_place> deadlines_;
  NameMap<std::unique_ptr<LaneClient>> by_name_;
  IndexedHeap<LaneClient, LessServed, &LaneClient::place> clients_;  // those with calls
  std::vector<LaneClient*> skipped_;
  int64_t served_now_ = 0;  // `served` of the client that was last first
  std::array<int64_t, kAllPolicies.size()> rows_{};
  std::array<uint64_t, kAllPolicies.size()> classes_epoch_{};
  std::array<Classes, kAllPolicies.size()> classes_;
};

}  // namespace fulcrum
