// See lane.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lane.h"

#include <algorithm>
#include <utility>

#include "scheduler/ladder_query.h"

namespace fulcrum {
namespace {

// Clients without waiting calls whose share is remembered, beyond those that have some.
constexpr size_t kIdleClients = 64;
// The same of a client's connections.
constexpr size_t kIdleConnections = 64;

// Room for `size` and one more.
template <class T>
void ReserveOneMore(std::vector<T>& items, size_t size) {
  if (items.capacity() <= size) items.reserve(2 * size + 8);
}

}  // namespace

LaneKey::LaneKey(const Call& call, uint64_t canary_id)
    : step(call.step), output_type(call.output_type), canary(canary_id) {
  for (const auto& shard : call.shards) shards.push_back(shard.get());
}

// What may be lacking memory comes before anything changes: an Add that throws changed nothing, and
// Remove and Take of what was added never allocate.
Waiting* Lane::Add(std::shared_ptr<Call> call, absl::Time submitted, uint64_t seq, uint64_t under) {
  arrivals_.ReserveOne();
  deadlines_.ReserveOne();
  clients_.ReserveOne();
  ReserveOneMore(skipped_, clients_.size());
  if (free_nodes_.empty()) {
    ReserveOneMore(free_nodes_, nodes_.size());
    free_nodes_.push_back(&nodes_.emplace_back());
  }
  Waiting* const node = free_nodes_.back();
  LaneClient* const client = ClientOf(call->client);
  client->calls.ReserveOne();
  int64_t& next_turn = NextTurn(*client, call->connection);

  free_nodes_.pop_back();
  rows_[static_cast<size_t>(call->policy)] += call->rows;
  *node = Waiting{.call = std::move(call),
                  .submitted = submitted,
                  .seq = seq,
                  .under = under,
                  .lane = this,
                  .client = client};
  node->turn = std::max(next_turn, client->turn_now);
  next_turn = node->turn + node->call->rows;
  arrivals_.Push(node);
  deadlines_.Push(node);
  client->calls.Push(node);
  if (client->calls.size() == 1) {
    client->served = std::max(client->served, served_now_);
    clients_.Push(client);
  } else if (client->calls.top() == node) {
    clients_.Update(client);
  }
  return node;
}

int64_t& Lane::NextTurn(LaneClient& client, uint64_t connection) {
  if (client.calls.empty()) {
    client.next_turn.clear();
    client.turn_now = 0;
  }
  if (client.next_turn.size() > client.calls.size() + kIdleConnections) {
    std::erase_if(client.next_turn,
                  [&client](const auto& entry) { return entry.second <= client.turn_now; });
  }
  return client.next_turn[connection];
}

LaneClient* Lane::ClientOf(const std::string& name) {
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) return known->second.get();
  return by_name_.emplace(name, std::make_unique<LaneClient>()).first->second.get();
}

TakenCall Lane::Remove(Waiting* waiting) {
  LaneClient& client = *waiting->client;
  if (client.calls.size() == 1) clients_.Remove(&client);  // while its first still gives its order
  client.calls.Remove(waiting);
  if (client.calls.empty()) {
    DropIdleClients();
  } else {
    clients_.Update(&client);
  }
  arrivals_.Remove(waiting);
  deadlines_.Remove(waiting);
  rows_[static_cast<size_t>(waiting->call->policy)] -= waiting->call->rows;
  TakenCall taken{std::move(waiting->call), waiting->submitted, waiting->under};
  free_nodes_.push_back(waiting);
  return taken;
}

bool Lane::Take(int64_t max_rows, absl::FunctionRef<bool(const Call&, const Call&)> may_join,
                std::vector<TakenCall>& out) {
  out.reserve(out.size() + std::min(arrivals_.size(), static_cast<size_t>(max_rows)));
  const std::shared_ptr<Call> first_call = first()->call;
  served_now_ = std::max(served_now_, clients_.top()->served);
  int64_t rows = 0;
  bool full = false;
  while (!clients_.empty() && rows < max_rows) {
    LaneClient* const client = clients_.top();
    Waiting* const next = client->calls.top();
    const Call& call = *next->call;
    const bool joins = &call == first_call.get() || may_join(*first_call, call);
    const bool fits = &call == first_call.get() || rows + call.rows <= max_rows;
    if (!joins || !fits) {
      full |= joins;
      clients_.Remove(client);
      skipped_.push_back(client);
      continue;
    }
    rows += call.rows;
    client->served += call.rows;
    client->turn_now = next->turn;
    out.push_back(Remove(next));
  }
  for (LaneClient* client : skipped_) clients_.Push(client);
  skipped_.clear();
  return full || rows >= max_rows;
}

const Lane::Classes& Lane::ClassesFor(Policy policy, const LeverSnapshot& levers) {
  const size_t index = static_cast<size_t>(policy);
  if (classes_epoch_[index] == levers.epoch) return classes_[index];
  const Call& call = *oldest()->call;
  classes_[index].clear();
  for (const auto& shard : call.shards) {
    const LadderQuery query = QueryFor(*shard, call.step, policy);
    classes_[index].push_back(AllowedClasses(shard->backend->ladder(), query, levers.levers));
  }
  classes_epoch_[index] = levers.epoch;
  return classes_[index];
}

void Lane::Reset() {
  by_name_.clear();
  served_now_ = 0;
  classes_epoch_.fill(0);
  last_run = absl::InfinitePast();
  last_turn = 0;
  held_epoch = 0;
}

void Lane::DropIdleClients() {
  if (by_name_.size() <= clients_.size() + skipped_.size() + kIdleClients) return;
  std::erase_if(by_name_, [](const auto& entry) { return entry.second->calls.empty(); });
}

}  // namespace fulcrum
