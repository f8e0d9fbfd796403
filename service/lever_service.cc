// Lever requests into the store; watchers, each with its own bounded queue.
// SPDX-License-Identifier: Apache-2.0
#include "service/lever_service.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "kernels/ladder/levers.h"
#include "scheduler/exceptions.h"
#include "service/canary_messages.h"
#include "service/grpc_status.h"
#include "service/headers_first.h"
#include "service/lever_requests.h"
#include "service/proto_names.h"

namespace fulcrum::service {
namespace {

constexpr int kHistoryPreset = 100;

void Fill(const LeverSnapshot& snapshot, google::protobuf::RepeatedPtrField<v1::Lever>* out) {
  const LeverSet built_in;
  for (const LeverInfo& info : LeverTable()) {
    const size_t index = static_cast<size_t>(info.lever);
    v1::Lever* lever = out->Add();
    lever->set_name(std::string(info.name));
    lever->set_value(snapshot.levers.Print(info.lever));
    lever->set_kind(ToProto(info.kind));
    for (std::string_view choice : info.choices) lever->add_choices(std::string(choice));
    lever->set_default_value(built_in.Print(info.lever));
    lever->set_min(info.min);
    lever->set_max(info.max);
    lever->set_source(ToProto(snapshot.source[index]));
    lever->set_latched(snapshot.latched[index]);
    lever->set_changes_bits(info.changes_bits);
    lever->set_gates(std::string(info.gates));
    lever->set_description(std::string(info.doc));
  }
}

// A watch that was refused before it began.
class RefusedWatch final : public grpc::ServerWriteReactor<v1::LeverEvent> {
 public:
  explicit RefusedWatch(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

// All watches. One listener of the store feeds them: a watch ends on gRPC's threads, where waiting
// for a running listener, as unsubscribing does, could wait for itself.
class LeverServiceImpl::Watchers {
 public:
  class Watch;

  Watchers(LeverStore& store, const LeverServiceOptions& options)
      : store_(store), options_(options) {
    subscription_ = store.Subscribe([this](const LeverEvent& event) { Publish(event); });
  }
  ~Watchers() { subscription_.reset(); }

  absl::StatusOr<grpc::ServerWriteReactor<v1::LeverEvent>*> Start(uint64_t since_epoch);
  void Remove(const std::shared_ptr<Watch>& watch);
  void Shutdown();
  // What `body` throws, which is told.
  template <class Body>
  absl::Status Heard(Body&& body) {
    return options_.events == nullptr ? Caught(body)
                                      : Guarded(*options_.events, Thrower::kRpc, body);
  }

 private:
  void Publish(const LeverEvent& event);
  std::vector<std::shared_ptr<Watch>> All() {
    absl::MutexLock lock(&mu_);
    return {watches_.begin(), watches_.end()};
  }

  LeverStore& store_;
  const LeverServiceOptions options_;
  absl::Mutex mu_;
  std::set<std::shared_ptr<Watch>> watches_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<LeverStore::Subscription> subscription_;
};

// One stream. Events are queued under its lock and written one at a time.
class LeverServiceImpl::Watchers::Watch final : public grpc::ServerWriteReactor<v1::LeverEvent> {
 public:
  Watch(Watchers& owner, size_t max_queue) : owner_(owner), max_queue_(max_queue) {}

  // Takes the past first. Events of the store that arrive meanwhile wait for the lock, and those
  // already taken from the past are then known by their epoch: an epoch's events are one step.
  absl::Status Begin(std::shared_ptr<Watch> self, uint64_t since_epoch) {
    absl::MutexLock lock(&mu_);
    const std::vector<LeverEvent> past = owner_.store_.History();
    const uint64_t live = owner_.store_.Snapshot()->epoch;
    if (since_epoch > live) {
      return absl::OutOfRangeError(absl::StrFormat(
          "epoch %d has not been; epoch %d is live (epochs begin anew when a node restarts): list "
          "the levers and watch from there",
          since_epoch, live));
    }
    if (past.size() >= LeverStore::kHistory && since_epoch < past.front().epoch) {
      return absl::OutOfRangeError(absl::StrFormat(
          "changes since epoch %d are no longer kept, only those after %d: list the levers and "
          "watch from there",
          since_epoch, past.front().epoch));
    }
    told_epoch_ = since_epoch;
    for (const LeverEvent& event : past) {
      if (event.epoch <= since_epoch) continue;
      queue_.push_back(MessageOf(event));
      told_epoch_ = event.epoch;
    }
    max_queue_ += queue_.size();  // what was asked for does not count as being slow
    self_ = std::move(self);
    begun_ = true;
    StartSendInitialMetadata();  // tells the client that nothing from now on is missed
    WriteNext();
    return absl::OkStatus();
  }

  void Push(const LeverEvent& event) {
    absl::MutexLock lock(&mu_);
    if (!begun_ || finished_ || event.epoch <= told_epoch_) return;
    if (queue_.size() >= max_queue_) {
      End(absl::ResourceExhaustedError(absl::StrFormat(
          "the watcher is %d events behind and was cut off; watch again from the last epoch seen",
          queue_.size())));
      return;
    }
    queue_.push_back(MessageOf(event));
    WriteNext();
  }

  void Stop(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    if (begun_) End(status);
  }

  void OnWriteDone(bool ok) override {
    const absl::Status thrown = owner_.Heard([&] {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) {
        End(absl::CancelledError("the watcher went away"));
        return;
      }
      WriteNext();
    });
    if (!thrown.ok()) (void)Caught([&] { Stop(thrown); });
  }
  void OnCancel() override {
    (void)owner_.Heard([&] { Stop(absl::CancelledError("the watcher went away")); });
  }
  void OnDone() override {
    std::shared_ptr<Watch> self;  // the last holder, once the owner lets go; dies after the lock
    {
      absl::MutexLock lock(&mu_);
      self = std::move(self_);
    }
    owner_.Remove(self);
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_ || queue_.empty()) return;
    current_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    StartWrite(&current_);
  }
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(finished_, true)) return;
    queue_.clear();
    Finish(ToGrpc(status));
  }

  Watchers& owner_;
  absl::Mutex mu_;
  size_t max_queue_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::LeverEvent> queue_ ABSL_GUARDED_BY(mu_);
  v1::LeverEvent current_;  // gRPC's while writing_
  uint64_t told_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Watch> self_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<grpc::ServerWriteReactor<v1::LeverEvent>*> LeverServiceImpl::Watchers::Start(
    uint64_t since_epoch) {
  // Read before the watch is added: what changes in between comes from the history.
  if (since_epoch == 0) since_epoch = store_.Snapshot()->epoch;
  auto watch = std::make_shared<Watch>(*this, options_.watcher_queue);
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::UnavailableError("the node is stopping");
    if (watches_.size() >= options_.max_watchers) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%d watchers are connected, as many as this node serves", watches_.size()));
    }
    watches_.insert(watch);
  }
  if (absl::Status s = watch->Begin(watch, since_epoch); !s.ok()) {
    Remove(watch);
    return s;
  }
  {
    absl::MutexLock lock(&mu_);
    if (!stopped_) return watch.get();
  }
  watch->Stop(
      absl::UnavailableError("the node is stopping"));  // Shutdown may have come before Begin
  return watch.get();
}

void LeverServiceImpl::Watchers::Remove(const std::shared_ptr<Watch>& watch) {
  absl::MutexLock lock(&mu_);
  watches_.erase(watch);
}

void LeverServiceImpl::Watchers::Publish(const LeverEvent& event) {
  for (const std::shared_ptr<Watch>& watch : All()) {
    // One that misses an event must not go on as if it had not.
    const absl::Status thrown = Heard([&] { watch->Push(event); });
    if (!thrown.ok()) (void)Caught([&] { watch->Stop(thrown); });
  }
}

void LeverServiceImpl::Watchers::Shutdown() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  for (const std::shared_ptr<Watch>& watch : All()) {
    watch->Stop(absl::UnavailableError("the node is stopping"));
  }
}

LeverServiceImpl::LeverServiceImpl(LeverStore& store, CanaryControl& canaries,
                                   const Authorizer& authorizer, LeverServiceOptions options)
    : store_(store),
      canaries_(canaries),
      authorizer_(authorizer),
      watchers_(std::make_unique<Watchers>(store, options)) {
  MarkMethodStreamed(0, HeadersFirst(options.events, this, &LeverServiceImpl::ListLevers));
  MarkMethodStreamed(1, HeadersFirst(options.events, this, &LeverServiceImpl::SetLevers));
  Bound("WatchLevers", this, &LeverServiceImpl::WatchLevers);
  MarkMethodStreamed(3, HeadersFirst(options.events, this, &LeverServiceImpl::ListLeverHistory));
  MarkMethodStreamed(4, HeadersFirst(options.events, this, &LeverServiceImpl::StartCanary));
  MarkMethodStreamed(5, HeadersFirst(options.events, this, &LeverServiceImpl::PromoteCanary));
  MarkMethodStreamed(6, HeadersFirst(options.events, this, &LeverServiceImpl::AbortCanary));
  MarkMethodStreamed(7, HeadersFirst(options.events, this, &LeverServiceImpl::HeartbeatCanary));
}

LeverServiceImpl::~LeverServiceImpl() = default;

void LeverServiceImpl::Shutdown() { watchers_->Shutdown(); }

grpc::ServerUnaryReactor* LeverServiceImpl::ListLevers(grpc::CallbackServerContext* context,
                                                       const v1::ListLeversRequest* /*request*/,
                                                       v1::ListLeversResponse* response) {
  const Peer peer = authorizer_.PeerOf(*context);
  if (absl::Status s = authorizer_.CheckCaller(peer); !s.ok()) return Finish(context, s);
  const std::shared_ptr<const LeverSnapshot> snapshot = store_.Snapshot();
  response->set_epoch(snapshot->epoch);
  Fill(*snapshot, response->mutable_levers());
  if (auto canary = canaries_.Last()) {
    if (canary->ended == absl::InfiniteFuture()) {
      canary->traffic = canaries_.TrafficNow(canary->spec, canary->salt);
    }
    *response->mutable_canary() = MessageOf(*canary);
  }
  *response->mutable_traffic() = MessageOf(canaries_.TrafficNow({}, 0));
  if (!authorizer_.CheckAdmin(peer).ok()) {
    if (response->has_canary()) {
      response->mutable_canary()->mutable_traffic()->clear_largest_unit();
    }
    response->mutable_traffic()->clear_largest_unit();
  }
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* LeverServiceImpl::ListLeverHistory(
    grpc::CallbackServerContext* context, const v1::ListLeverHistoryRequest* request,
    v1::ListLeverHistoryResponse* response) {
  if (absl::Status s = authorizer_.CheckCaller(authorizer_.PeerOf(*context)); !s.ok()) {
    return Finish(context, s);
  }
  const int limit = request->limit() == 0 ? kHistoryPreset : request->limit();
  const int most = static_cast<int>(LeverStore::kHistory);
  if (limit < 1 || limit > most) {
    return Finish(context,
                  InvalidField("limit", absl::StrFormat("%d; expected 1 to %d, or 0 for %d", limit,
                                                        most, kHistoryPreset)));
  }
  const std::vector<LeverEvent> past = store_.History();
  const size_t first = past.size() - std::min(past.size(), static_cast<size_t>(limit));
  for (size_t i = first; i < past.size(); ++i) *response->add_events() = MessageOf(past[i]);
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* LeverServiceImpl::SetLevers(grpc::CallbackServerContext* context,
                                                      const v1::SetLeversRequest* request,
                                                      v1::SetLeversResponse* response) {
  const Peer peer = authorizer_.PeerOf(*context);
  if (absl::Status s = authorizer_.CheckAdmin(peer); !s.ok()) return Finish(context, s);
  if (absl::Status s = CheckAssignments(request->assignments(), request->reason()); !s.ok())
    return Finish(context, s);

  std::vector<LeverChange> changes;
  for (const v1::LeverAssignment& a : request->assignments()) {
    changes.push_back({a.name(), a.value()});
  }
  const auto set = store_.Set(changes, {.based_on_epoch = request->based_on_epoch(),
                                        .validate_only = request->validate_only(),
                                        .source = LeverSource::kRpc,
                                        .actor = peer.Actor(),
                                        .reason = request->reason()});
  if (!set.ok()) return Finish(context, Explain(set.status(), changes));
  response->set_epoch((*set)->epoch);
  Fill(**set, response->mutable_levers());
  return Finish(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::LeverEvent>* LeverServiceImpl::WatchLevers(
    grpc::CallbackServerContext* context, const v1::WatchLeversRequest* request) {
  if (absl::Status s = authorizer_.CheckCaller(authorizer_.PeerOf(*context)); !s.ok()) {
    return new RefusedWatch(s);
  }
  absl::StatusOr<grpc::ServerWriteReactor<v1::LeverEvent>*> watch = StatusForNoMemory();
  const absl::Status thrown =
      watchers_->Heard([&] { watch = watchers_->Start(request->since_epoch()); });
  if (!thrown.ok()) watch = thrown;
  if (!watch.ok()) return new RefusedWatch(watch.status());
  return *watch;
}

}  // namespace fulcrum::service
