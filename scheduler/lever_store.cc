// Publishing lever snapshots and telling who listens. Values and their text are kernels/ladder's.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_store.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace fulcrum {

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

LeverStore::LeverStore(const Clock& clock, const LeverSnapshot& initial)
    : clock_(clock), live_(std::make_shared<const LeverSnapshot>(initial)) {}

std::shared_ptr<const LeverSnapshot> LeverStore::Snapshot() const {
  absl::MutexLock lock(&mu_);
  return live_;
}

absl::StatusOr<std::shared_ptr<const LeverSnapshot>> LeverStore::Set(
    const std::vector<LeverChange>& changes, const SetOptions& options) {
  absl::MutexLock notify_lock(&notify_mu_);
  const std::shared_ptr<const LeverSnapshot> base = Snapshot();  // only writers change it: it stays
  if (options.based_on_epoch != 0 && options.based_on_epoch != base->epoch) {
    return absl::AbortedError(absl::StrFormat(
        "the change is based on lever epoch %d, but epoch %d is live; read the levers again",
        options.based_on_epoch, base->epoch));
  }
  const bool beats_latch =
      options.source != LeverSource::kJournal && options.source != LeverSource::kRpc;
  auto next = std::make_shared<LeverSnapshot>(*base);
  next->epoch = base->epoch + 1;
  std::array<bool, kLeverCount> named{};
  for (const LeverChange& change : changes) {
    if (absl::Status s = next->levers.Set(change.lever, change.value); !s.ok()) return s;
    const size_t index = static_cast<size_t>(FindLever(change.lever)->lever);
    if (std::exchange(named[index], true)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("lever %s is named twice in one change; name it once", change.lever));
    }
    if (base->latched[index] && !beats_latch) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "lever %s is latched to '%s' (its value is from: %s); only a restart without it in "
          "latched_levers of the configuration and in FULCRUM_LATCHED_LEVERS opens it",
          change.lever, base->levers.Print(static_cast<Lever>(index)), Name(base->source[index])));
    }
  }

  std::vector<LeverEvent> events;
  const absl::Time now = clock_.Now();
  for (const LeverInfo& info : LeverTable()) {
    const std::string from = base->levers.Print(info.lever);
    const std::string to = next->levers.Print(info.lever);
    if (from == to) continue;
    next->source[static_cast<size_t>(info.lever)] = options.source;
    events.push_back({.epoch = next->epoch,
                      .time = now,
                      .lever = std::string(info.name),
                      .from = from,
                      .to = to,
                      .source = options.source,
                      .actor = options.actor,
                      .reason = options.reason,
                      .cause = "set"});
  }
  if (events.empty()) return base;
  if (options.validate_only) return next;

  std::vector<std::shared_ptr<Subscription>> listeners;
  {
    absl::MutexLock lock(&mu_);
    live_ = next;
    history_.insert(history_.end(), events.begin(), events.end());
    while (history_.size() > kHistory) history_.pop_front();
    std::erase_if(subscriptions_, [](const auto& weak) { return weak.expired(); });
    for (const auto& weak : subscriptions_) {
      if (auto subscription = weak.lock()) listeners.push_back(std::move(subscription));
    }
  }
  for (const LeverEvent& event : events) {
    for (const auto& listener : listeners) listener->Tell(event);
  }
  return next;
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
