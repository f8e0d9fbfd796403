// See canary_control.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace fulcrum {
namespace {

constexpr char kActor[] = "node";
// Until what the journal refused, a promotion or a record, is tried again.
constexpr absl::Duration kTryAgain = absl::Seconds(5);

}  // namespace

CanaryControl::CanaryControl(LeverStore& store, Observer& next, const Clock& clock,
                             std::function<void(const CanaryReport&)> on_change)
    : store_(store), next_(next), clock_(clock), on_change_(std::move(on_change)) {
  thread_ = std::thread([this] {
    KeepRunning([this] { Loop(); },
                [this](const absl::Status& what) { next_.OnException(Thrower::kCanary, what); });
  });
}

CanaryControl::~CanaryControl() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    act_.SignalAll();
  }
  thread_.join();
}

absl::Status CanaryControl::Known(uint64_t id) const {
  if (canary_ != nullptr && canary_->id() == id) {
    if (!canary_->ended()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrFormat("canary %d is over: it was %s", id, Name(canary_->state())));
  }
  return absl::NotFoundError(
      absl::StrFormat("no canary %d; %s", id,
                      canary_ == nullptr ? std::string("there was none since the node started")
                                         : absl::StrFormat("the last one is %d", canary_->id())));
}

CanaryReport CanaryControl::Report() const {
  CanaryReport report = canary_->Report();
  report.control = control_;
  report.epoch = epoch_;
  report.control_epoch = control_epoch_;
  report.salt = salt_;
  report.traffic = traffic_before_;
  report.not_kept = !not_kept_.empty();
  if (!canary_->ended() && !not_kept_.empty()) {
    report.evidence +=
        absl::StrFormat(" (its time is over, but it cannot be promoted: %s)", not_kept_);
  }
  return report;
}

std::optional<CanaryReport> CanaryControl::Last() const {
  absl::MutexLock lock(&mu_);
  if (canary_ == nullptr) return std::nullopt;
  return Report();
}

absl::StatusOr<CanaryReport> CanaryControl::Start(const CanarySpec& spec, uint64_t based_on_epoch,
                                                  bool validate_only) {
  absl::MutexLock change(&change_mu_);
  const absl::Time now = clock_.Now();
  // What would be wrong with it anyway goes first.
  auto made = store_.StartCanary(spec, based_on_epoch, /*validate_only=*/true);
  if (!made.ok()) return made.status();
  const uint64_t salt = ChooseSalt(traffic_, spec, made->view.canary->id, now);
  const CanaryTraffic traffic = TrafficOf(traffic_, spec, salt, now);
  if (absl::Status s = CheckEven(traffic, spec); !s.ok()) return s;
  {
    // Batches may be told of the canary as soon as the store has it: they wait here until it is
    // known.
    absl::MutexLock lock(&mu_);
    if (!validate_only) {
      made = store_.StartCanary(spec, based_on_epoch, validate_only, salt);
      if (!made.ok()) return made.status();
    }
    const CanarySplit& split = *made->view.canary;
    auto canary = std::make_unique<Canary>(split.id, spec, now);
    if (validate_only) {
      CanaryReport report = canary->Report();
      report.control = std::move(made->control);
      report.epoch = split.candidate->epoch;
      report.control_epoch = made->view.live->epoch;
      report.salt = salt;
      report.traffic = traffic;
      return report;
    }
    canary_ = std::move(canary);
    valve_ = split.valve;
    salt_ = salt;
    traffic_before_ = traffic;
    traffic_at_ = now + TrafficTable::kWindow;
    told_restarts_ = 0;
    not_before_ = absl::InfinitePast();
    not_kept_.clear();
    control_ = std::move(made->control);
    epoch_ = split.candidate->epoch;
    control_epoch_ = made->view.live->epoch;
    live_ = true;
    act_.SignalAll();
  }
  TellChange();
  absl::MutexLock lock(&mu_);
  return Report();
}

void CanaryControl::OnShard(const ShardInfo& info) {
  if (!live_.load(std::memory_order_acquire)) return;
  absl::MutexLock lock(&mu_);
  if (canary_ == nullptr || canary_->ended()) return;
  if (info.state == ShardState::kServing) canary_->OnServes(VersionOf(info), clock_.Now());
  if (info.state == ShardState::kDraining) canary_->OnUnloads(info.name);
  act_.Signal();
}

void CanaryControl::NoteArms() {
  const LeverView view = store_.View();
  if (view.canary == nullptr || view.canary->id != canary_->id()) return;
  canary_->OnArms(view.canary->arms_since, clock_.Now());
}

absl::StatusOr<CanaryReport> CanaryControl::Promote(uint64_t id, const std::string& actor,
                                                    const std::string& reason) {
  return EndByHand(id, LeverCause::kPromote, actor, reason);
}
absl::StatusOr<CanaryReport> CanaryControl::Abort(uint64_t id, const std::string& actor,
                                                  const std::string& reason) {
  return EndByHand(id, LeverCause::kAbort, actor, reason);
}

absl::StatusOr<CanaryReport> CanaryControl::EndByHand(uint64_t id, LeverCause cause,
                                                      const std::string& actor,
                                                      const std::string& reason) {
  absl::MutexLock change(&change_mu_);
  std::string evidence;
  {
    absl::MutexLock lock(&mu_);
    if (absl::Status s = Known(id); !s.ok()) return s;
    if (cause == LeverCause::kPromote) {
      NoteArms();
      const Canary::Decision decision = canary_->Decide(clock_.Now());
      if (decision.action == Canary::Action::kRevert) {
        return absl::FailedPreconditionError(
            absl::StrFormat("canary %d is being reverted: %s", id, decision.evidence));
      }
      if (absl::Status s = canary_->MayPromote(); !s.ok()) return s;
    }
    evidence = canary_->Summary();
  }
  absl::Status ended = End(id, cause, actor, reason, std::move(evidence));
  if (!ended.ok() && cause == LeverCause::kPromote) return ended;
  absl::MutexLock lock(&mu_);
  return Report();
}

absl::StatusOr<CanaryReport> CanaryControl::Heartbeat(uint64_t id) {
  absl::MutexLock lock(&mu_);
  if (absl::Status s = Known(id); !s.ok()) return s;
  canary_->OnHeartbeat(clock_.Now());
  act_.Signal();
  return Report();
}

absl::Status CanaryControl::End(uint64_t id, LeverCause cause, const std::string& actor,
                                const std::string& reason, std::string evidence) {
  absl::Status ended = store_.EndCanary(id, cause, actor, reason, evidence);
  if (!ended.ok() && cause == LeverCause::kPromote) return ended;
  if (!ended.ok()) {
    evidence += absl::StrFormat(" (not in the journal: %s)", std::string(ended.message()));
  }
  {
    absl::MutexLock lock(&mu_);
    not_kept_ = std::string(ended.message());
    canary_->End(cause == LeverCause::kPromote  ? CanaryState::kPromoted
                 : cause == LeverCause::kRevert ? CanaryState::kReverted
                                                : CanaryState::kAborted,
                 std::move(evidence), clock_.Now());
    live_ = false;
    act_.Signal();
  }
  TellChange();
  return ended;
}

void CanaryControl::TellChange() {
  if (!on_change_) return;
  std::optional<CanaryReport> report = Last();
  if (report.has_value()) on_change_(*report);
}

void CanaryControl::Check() {
  if (canary_ == nullptr || canary_->ended()) return;
  if (canary_->Decide(clock_.Now()).action != Canary::Action::kRevert) return;
  valve_->closed.store(true, std::memory_order_release);
  act_.Signal();
}

void CanaryControl::OnBatch(const BatchEvent& event) {
  if (live_.load(std::memory_order_acquire)) {
    absl::MutexLock lock(&mu_);
    if (canary_ != nullptr && !canary_->ended()) canary_->OnBatch(event, clock_.Now());
    Check();
  }
  next_.OnBatch(event);
}

void CanaryControl::OnShadow(const ShadowEvent& event) {
  if (live_.load(std::memory_order_acquire)) {
    absl::MutexLock lock(&mu_);
    if (canary_ != nullptr && !canary_->ended()) canary_->OnShadow(event);
    Check();
  }
  next_.OnShadow(event);
}

void CanaryControl::OnIncident(const Incident& incident) {
  if (live_.load(std::memory_order_acquire)) {
    absl::MutexLock lock(&mu_);
    if (canary_ != nullptr && !canary_->ended()) canary_->OnIncident(incident);
    Check();
  }
  next_.OnIncident(incident);
}

CanaryControl::Task CanaryControl::NextTask() {
  for (;;) {
    if (stopping_) return Task::kStop;
    absl::Time look_again = absl::InfiniteFuture();
    const absl::Time now = clock_.Now();
    if (store_.unwritten()) {
      if (now >= write_at_) return Task::kWrite;
      look_again = write_at_;
    }
    if (canary_ != nullptr && !canary_->ended()) {
      NoteArms();
      if (std::exchange(told_restarts_, canary_->restarts()) != canary_->restarts()) {
        return Task::kTell;
      }
      const Canary::Action action = canary_->Decide(now).action;
      if (action == Canary::Action::kRevert) return Task::kDecide;
      if (action != Canary::Action::kNone && now >= not_before_) return Task::kDecide;
      if (now >= traffic_at_) return Task::kTraffic;
      look_again = std::min({look_again, std::max(canary_->NextLook(), not_before_), traffic_at_});
    }
    clock_.Wait(mu_, act_, look_again);
  }
}

void CanaryControl::LookAtTraffic() {
  CanarySpec spec;
  uint64_t id = 0, salt = 0;
  const absl::Time now = clock_.Now();
  {
    absl::MutexLock lock(&mu_);
    traffic_at_ = now + TrafficTable::kPane;
    spec = canary_->spec();
    id = canary_->id();
    salt = salt_;
  }
  std::string outgrown = Outgrown(TrafficOf(traffic_, spec, salt, now), spec);
  absl::MutexLock lock(&mu_);
  if (canary_->id() == id) canary_->OnTraffic(std::move(outgrown));
  Check();
}

void CanaryControl::Act() {
  absl::MutexLock change(&change_mu_);
  Canary::Decision decision;
  uint64_t id = 0;
  std::string reason;
  {
    // An operator may have ended it, and even begun another, meanwhile.
    absl::MutexLock lock(&mu_);
    decision = canary_->Decide(clock_.Now());
    id = canary_->id();
    reason = canary_->spec().reason;
    if (decision.action == Canary::Action::kHold) canary_->Hold();
  }
  switch (decision.action) {
    case Canary::Action::kNone:
      break;
    case Canary::Action::kHold:
      TellChange();
      break;
    case Canary::Action::kRevert:
      (void)End(id, LeverCause::kRevert, kActor, reason, decision.evidence);
      break;
    case Canary::Action::kPromote:
      if (absl::Status s = End(id, LeverCause::kPromote, kActor, reason, decision.evidence);
          !s.ok()) {
        bool first = false;
        {
          absl::MutexLock lock(&mu_);
          not_before_ = clock_.Now() + kTryAgain;
          first = not_kept_.empty();
          not_kept_ = std::string(s.message());
        }
        if (first) TellChange();  // once, not at every try: it is logged
      }
      break;
  }
}

void CanaryControl::Loop() {
  for (;;) {
    Task task;
    {
      absl::MutexLock lock(&mu_);
      task = NextTask();
    }
    switch (task) {
      case Task::kStop:
        return;
      case Task::kWrite:
        if (!store_.WriteUnwritten().ok()) {
          absl::MutexLock lock(&mu_);
          write_at_ = clock_.Now() + kTryAgain;
        }
        break;
      case Task::kTraffic:
        LookAtTraffic();
        break;
      case Task::kTell: {
        absl::MutexLock change(&change_mu_);
        TellChange();
        break;
      }
      case Task::kDecide:
        Act();
        break;
    }
  }
}

}  // namespace fulcrum
