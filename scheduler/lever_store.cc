// Publishing lever snapshots and telling who listens. Values and their text are kernels/ladder's.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_store.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"
#include "scheduler/shard_store.h"

namespace fulcrum {
namespace {

// What differs between two snapshots, as events of one step.
LeverStep Differences(const LeverSnapshot& from, const LeverSnapshot& to,
                      const LeverEvent& common) {
  LeverStep step;
  for (const LeverInfo& info : LeverTable()) {
    LeverEvent event = common;
    event.lever = std::string(info.name);
    event.from = from.levers.Print(info.lever);
    event.to = to.levers.Print(info.lever);
    if (event.from != event.to) step.push_back(std::move(event));
  }
  return step;
}

absl::Status NotKept(const absl::Status& why) {
  return absl::UnavailableError(
      absl::StrFormat("nothing was changed: %s", std::string(why.message())));
}

}  // namespace

// Kept alive by the handle; the store holds it weakly.
class LeverStore::Subscription {
 public:
  explicit Subscription(std::function<void(const LeverEvent&)> listener)
      : listener_(std::move(listener)) {}

  void Tell(const LeverEvent& event) {
    absl::MutexLock lock(&mu_);
    if (listener_) listener_(event);
  }
  // After it returns the listener is not running and will not run.
  void Stop() {
    absl::MutexLock lock(&mu_);
    listener_ = nullptr;
  }

 private:
  absl::Mutex mu_;
  std::function<void(const LeverEvent&)> listener_ ABSL_GUARDED_BY(mu_);
};

LeverStore::LeverStore(const Clock& clock, const LeverSnapshot& initial, LeverPast past)
    : clock_(clock),
      log_(past.log),
      on_not_kept_(std::move(past.on_not_kept)),
      view_{.live = std::make_shared<const LeverSnapshot>(initial)},
      history_(
          past.history.end() - static_cast<std::ptrdiff_t>(std::min(past.history.size(), kHistory)),
          past.history.end()),
      unwritten_(std::make_move_iterator(past.unwritten.begin()),
                 std::make_move_iterator(past.unwritten.end())),
      unwritten_count_(unwritten_.size()) {}

LeverView LeverStore::View() const {
  absl::MutexLock lock(&mu_);
  return view_;
}

absl::Status LeverStore::CheckBase(uint64_t based_on_epoch, const LeverSnapshot& live) const {
  if (based_on_epoch == 0 || based_on_epoch == live.epoch) return absl::OkStatus();
  return absl::AbortedError(absl::StrFormat(
      "the change is based on lever epoch %d, but epoch %d is live; read the levers again",
      based_on_epoch, live.epoch));
}

absl::Status LeverStore::Apply(const std::vector<LeverChange>& changes, LeverSource source,
                               const LeverView& view, LeverSnapshot& next) const {
  const LeverSnapshot& base = *view.live;
  const bool beats_latch = source != LeverSource::kJournal && source != LeverSource::kRpc;
  std::array<bool, kLeverCount> named{};
  for (const LeverChange& change : changes) {
    if (absl::Status s = next.levers.Set(change.lever, change.value); !s.ok()) return s;
    const Lever lever = FindLever(change.lever)->lever;
    const size_t index = static_cast<size_t>(lever);
    if (std::exchange(named[index], true)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("lever %s is named twice in one change; name it once", change.lever));
    }
    if (base.latched[index] && !beats_latch) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "lever %s is latched to '%s' (its value is from: %s); only a restart without it in "
          "latched_levers of the configuration and in FULCRUM_LATCHED_LEVERS opens it",
          change.lever, base.levers.Print(lever), Name(base.source[index])));
    }
    if (view.canary != nullptr &&
        view.canary->candidate->levers.Print(lever) != base.levers.Print(lever)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "lever %s is under canary %d ('%s' against '%s'); promote or abort the canary first",
          change.lever, view.canary->id, view.canary->candidate->levers.Print(lever),
          base.levers.Print(lever)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const LeverSnapshot>> LeverStore::Set(
    const std::vector<LeverChange>& changes, const SetOptions& options) {
  absl::MutexLock notify_lock(&notify_mu_);
  const LeverView base = View();  // only writers change it: it stays
  if (absl::Status s = CheckBase(options.based_on_epoch, *base.live); !s.ok()) return s;
  auto next = std::make_shared<LeverSnapshot>(*base.live);
  if (absl::Status s = Apply(changes, options.source, base, *next); !s.ok()) return s;

  LeverView view{.live = next};
  std::shared_ptr<LeverSnapshot> candidate;
  if (base.canary != nullptr) {
    // The candidate takes the change too: the two sides go on differing in the canary's levers
    // alone.
    auto split = std::make_shared<CanarySplit>(*base.canary);
    candidate = std::make_shared<LeverSnapshot>(*split->candidate);
    if (absl::Status s = Apply(changes, options.source, base, *candidate); !s.ok()) return s;
    candidate->epoch = base.live->epoch + 1;
    split->candidate = candidate;
    const bool arms = std::any_of(changes.begin(), changes.end(), [&](const LeverChange& change) {
      const LeverInfo& info = *FindLever(change.lever);
      return !info.gates.empty() && candidate->levers.Print(info.lever) !=
                                        base.canary->candidate->levers.Print(info.lever);
    });
    if (arms) split->arms_since = candidate->epoch;
    view.canary = std::move(split);
  }
  next->epoch = base.live->epoch + (base.canary == nullptr ? 1 : 2);
  // A value that is live already, but from the configuration, is now the operator's: it is recorded
  // too, so that another configuration does not take it back at a restart.
  LeverStep step;
  for (const LeverInfo& info : LeverTable()) {
    const bool named = std::any_of(changes.begin(), changes.end(), [&](const LeverChange& change) {
      return FindLever(change.lever)->lever == info.lever;
    });
    if (!named) continue;
    LeverEvent event{.epoch = next->epoch,
                     .time = clock_.Now(),
                     .lever = std::string(info.name),
                     .from = base.live->levers.Print(info.lever),
                     .to = next->levers.Print(info.lever),
                     .source = options.source,
                     .actor = options.actor,
                     .reason = options.reason,
                     .cause = LeverCause::kSet};
    // The journal's are the RPCs of an earlier life of the node: they are recorded.
    LeverSource source = base.live->source[static_cast<size_t>(info.lever)];
    if (source == LeverSource::kJournal) source = LeverSource::kRpc;
    const bool so_already = event.from == event.to && source == options.source;
    if (!so_already) step.push_back(std::move(event));
  }
  if (step.empty()) return base.live;
  for (const LeverEvent& event : step) {
    const size_t index = static_cast<size_t>(FindLever(event.lever)->lever);
    next->source[index] = options.source;
    if (candidate != nullptr) candidate->source[index] = options.source;
  }
  if (options.validate_only) return next;
  if (absl::Status s = Keep(step); !s.ok()) return NotKept(s);
  // What was checked had other arms beside it: the first batches are all checked again.
  if (view.canary != nullptr && view.canary->arms_since != base.canary->arms_since) {
    view.canary->valve->batches = 0;
  }
  Publish(std::move(view), step);
  return next;
}

absl::StatusOr<LeverStore::Started> LeverStore::StartCanary(const CanarySpec& spec,
                                                            uint64_t based_on_epoch,
                                                            bool validate_only, uint64_t salt) {
  if (absl::Status s = CheckCanary(spec); !s.ok()) return s;
  absl::MutexLock notify_lock(&notify_mu_);
  const LeverView base = View();
  if (absl::Status s = CheckBase(based_on_epoch, *base.live); !s.ok()) return s;
  if (base.canary != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("canary %d is running, and one runs at a time; promote or abort it first",
                        base.canary->id));
  }
  auto candidate = std::make_shared<LeverSnapshot>(*base.live);
  if (absl::Status s = Apply(spec.changes, LeverSource::kRpc, base, *candidate); !s.ok()) return s;
  candidate->epoch = base.live->epoch + 1;
  auto live = std::make_shared<LeverSnapshot>(*base.live);
  live->epoch = candidate->epoch + 1;
  const LeverStep step = Differences(*live, *candidate,
                                     {.epoch = live->epoch,
                                      .time = clock_.Now(),
                                      .source = LeverSource::kRpc,
                                      .actor = spec.actor,
                                      .reason = spec.reason,
                                      .cause = LeverCause::kCanaryStart,
                                      .canary = candidate->epoch});
  if (step.empty()) {
    return absl::InvalidArgumentError(
        "the candidate's values are the live ones already; there is nothing to try");
  }
  for (const LeverEvent& event : step) {
    candidate->source[static_cast<size_t>(FindLever(event.lever)->lever)] = LeverSource::kRpc;
  }
  Started started{.view = {.live = live}};
  for (const LeverEvent& event : step) started.control.push_back({event.lever, event.from});
  auto split = std::make_shared<CanarySplit>();
  split->id = candidate->epoch;
  split->salt = salt == 0 ? split->id : salt;
  split->share = spec.share;
  split->unit = spec.unit;
  split->candidate = std::move(candidate);
  split->valve = std::make_shared<CanaryValve>(LatestGeneration());
  started.view.canary = std::move(split);
  if (validate_only) return started;
  if (absl::Status s = Keep(step); !s.ok()) return NotKept(s);
  Publish(started.view, step);
  return started;
}

absl::Status LeverStore::EndCanary(uint64_t id, LeverCause cause, const std::string& actor,
                                   const std::string& reason, const std::string& evidence) {
  absl::MutexLock notify_lock(&notify_mu_);
  const LeverView base = View();
  if (base.canary == nullptr || base.canary->id != id) {
    return absl::NotFoundError(absl::StrFormat("canary %d does not run", id));
  }
  const bool promote = cause == LeverCause::kPromote;
  if (!promote) base.canary->valve->closed.store(true, std::memory_order_release);
  const LeverSnapshot& candidate = *base.canary->candidate;
  auto live = std::make_shared<LeverSnapshot>(promote ? candidate : *base.live);
  live->epoch = base.live->epoch + 1;
  const LeverEvent common{.epoch = live->epoch,
                          .time = clock_.Now(),
                          .source = LeverSource::kRpc,
                          .actor = actor,
                          .reason = reason,
                          .cause = cause,
                          .canary = id,
                          .evidence = evidence};
  const LeverStep step = promote ? Differences(*base.live, candidate, common)
                                 : Differences(candidate, *base.live, common);
  if (promote) {
    if (absl::Status s = Keep(step); !s.ok()) return NotKept(s);
  }
  Publish({.live = std::move(live)}, step);
  if (promote) return absl::OkStatus();
  // After the fact: a start that finds the canary unfinished in the log ends it too.
  absl::Status kept = Keep(step);
  if (!kept.ok()) {
    unwritten_.push_back(step);
    unwritten_count_.store(unwritten_.size(), std::memory_order_release);
  }
  return kept;
}

absl::Status LeverStore::WriteUnwritten() {
  absl::MutexLock notify_lock(&notify_mu_);
  return CatchUp();
}

absl::Status LeverStore::CatchUp() {
  while (!unwritten_.empty()) {
    if (absl::Status s = log_->Append(unwritten_.front()); !s.ok()) return s;
    unwritten_.pop_front();
    unwritten_count_.store(unwritten_.size(), std::memory_order_release);
  }
  return absl::OkStatus();
}

absl::Status LeverStore::Keep(const LeverStep& step) {
  if (log_ == nullptr) return absl::OkStatus();
  absl::Status kept = CatchUp();
  if (kept.ok()) kept = log_->Append(step);
  if (kept.ok() || !on_not_kept_) return kept;
  // The node itself tries a promotion again and again.
  const LeverEvent& first = step.front();
  const bool promote = first.cause == LeverCause::kPromote;
  if (!promote || std::exchange(told_not_kept_, first.canary) != first.canary) {
    on_not_kept_(step, kept);
  }
  return kept;
}

void LeverStore::Publish(LeverView next, const LeverStep& step) {
  std::vector<std::shared_ptr<Subscription>> listeners;
  {
    absl::MutexLock lock(&mu_);
    view_ = std::move(next);
    history_.insert(history_.end(), step.begin(), step.end());
    while (history_.size() > kHistory) history_.pop_front();
    std::erase_if(subscriptions_, [](const auto& weak) { return weak.expired(); });
    for (const auto& weak : subscriptions_) {
      if (auto subscription = weak.lock()) listeners.push_back(std::move(subscription));
    }
  }
  for (const LeverEvent& event : step) {
    for (const auto& listener : listeners) listener->Tell(event);
  }
}

std::shared_ptr<LeverStore::Subscription> LeverStore::Subscribe(
    std::function<void(const LeverEvent&)> listener) {
  auto subscription = std::make_shared<Subscription>(std::move(listener));
  {
    absl::MutexLock lock(&mu_);
    std::erase_if(subscriptions_, [](const auto& weak) { return weak.expired(); });
    subscriptions_.push_back(subscription);
  }
  // The handle stops the listener when it goes, although a notifying thread may still hold the
  // object for a moment.
  Subscription* const raw = subscription.get();
  return {raw, [subscription = std::move(subscription)](Subscription* s) { s->Stop(); }};
}

std::vector<LeverEvent> LeverStore::History() const {
  absl::MutexLock lock(&mu_);
  return {history_.begin(), history_.end()};
}

}  // namespace fulcrum
