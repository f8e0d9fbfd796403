// The list, its sums, and the clock.
// SPDX-License-Identifier: Apache-2.0
#include "service/call_book.h"

#include <utility>

namespace fulcrum::service {

CallBook::CallBook(const Clock& clock, Observer& observer)
    : clock_(clock), observer_(observer), thread_([this] {
        KeepRunning(
            [this] { Loop(); },
            [this](const absl::Status& what) { observer_.OnException(Thrower::kWatch, what); });
      }) {}

CallBook::~CallBook() {
  {
    absl::MutexLock lock(&mu_);
    ended_ = true;
    wake_.SignalAll();
  }
  thread_.join();
}

bool CallBook::Add(std::shared_ptr<OpenCall> call) {
  OpenCall& c = *call;
  absl::MutexLock lock(&mu_);
  // What needs memory comes first: an Add that throws has listed nothing.
  if (c.metric >= static_cast<int>(by_method_.size())) {
    by_method_.resize(static_cast<size_t>(c.metric) + 1);
  }
  c.timed_ = c.expires != absl::InfiniteFuture();
  if (c.timed_) {
    deadlines_.ReserveOne();
    deadlines_.Push(&c);
    if (c.expires < alarm_) wake_.Signal();
  }
  c.share_ = std::move(call);
  c.after_ = first_;
  if (first_ != nullptr) first_->before_ = &c;
  first_ = &c;
  ++open_[static_cast<size_t>(c.kind)];
  if (c.metric >= 0) ++by_method_[static_cast<size_t>(c.metric)];
  c.late_ = stopping_;
  if (Awaited(c)) ++early_;
  return !stopping_;
}

bool CallBook::Awaited(const OpenCall& call) {
  return !call.late_ && call.kind != OpenKind::kStream;
}

void CallBook::Untime(OpenCall& call) {
  if (std::exchange(call.timed_, false)) deadlines_.Remove(&call);
}

std::shared_ptr<OpenCall> CallBook::Remove(OpenCall& call) {
  absl::MutexLock lock(&mu_);
  Untime(call);
  (call.before_ == nullptr ? first_ : call.before_->after_) = call.after_;
  if (call.after_ != nullptr) call.after_->before_ = call.before_;
  --open_[static_cast<size_t>(call.kind)];
  if (call.metric >= 0) --by_method_[static_cast<size_t>(call.metric)];
  if (Awaited(call) && --early_ == 0) quiet_.SignalAll();
  return std::move(call.share_);
}

int64_t CallBook::open(OpenKind kind) const {
  absl::MutexLock lock(&mu_);
  return open_[static_cast<size_t>(kind)];
}

int64_t CallBook::open(int metric) const {
  absl::MutexLock lock(&mu_);
  const auto index = static_cast<size_t>(metric);
  return metric >= 0 && index < by_method_.size() ? by_method_[index] : 0;
}

CallBook::Counts CallBook::BeginStop(absl::FunctionRef<void(const OpenFacts&)> tell) {
  Counts counts;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    counts = {.projections = open_[static_cast<size_t>(OpenKind::kProjection)],
              .others = open_[static_cast<size_t>(OpenKind::kOther)],
              .streams = open_[static_cast<size_t>(OpenKind::kStream)]};
  }
  for (const auto& stream : All(/*streams=*/true)) {
    (void)Guarded(observer_, Thrower::kWatch, [&] { tell(stream->Facts()); });
    (void)Guarded(observer_, Thrower::kWatch, [&] { stream->StopBegan(); });
  }
  return counts;
}

std::vector<std::shared_ptr<OpenCall>> CallBook::All(bool streams) const {
  std::vector<std::shared_ptr<OpenCall>> all;
  absl::MutexLock lock(&mu_);
  for (OpenCall* call = first_; call != nullptr; call = call->after_) {
    if ((call->kind == OpenKind::kStream) == streams) all.push_back(call->share_);
  }
  return all;
}

void CallBook::AwaitCalls(absl::Time until) {
  absl::MutexLock lock(&mu_);
  while (early_ > 0 && clock_.Now() < until) clock_.Wait(mu_, quiet_, until);
}

void CallBook::CutOff(bool streams, absl::FunctionRef<void(const OpenFacts&)> tell) {
  for (const std::shared_ptr<OpenCall>& call : All(streams)) {
    (void)Guarded(observer_, Thrower::kWatch, [&] {
      if (const auto facts = call->CutOff()) tell(*facts);
    });
  }
}

void CallBook::Loop() {
  // Nothing is allocated between a call's leaving the heap and its being told.
  constexpr size_t kAtOnce = 64;
  std::vector<std::shared_ptr<OpenCall>> due;
  due.reserve(kAtOnce);
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      while (due.empty()) {
        if (ended_) return;
        const absl::Time now = clock_.Now();
        while (!deadlines_.empty() && deadlines_.top()->expires <= now && due.size() < kAtOnce) {
          due.push_back(deadlines_.top()->share_);
          Untime(*due.back());
        }
        alarm_ = deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.top()->expires;
        if (due.empty()) clock_.Wait(mu_, wake_, alarm_);
      }
    }
    for (const std::shared_ptr<OpenCall>& call : due) {
      (void)Guarded(observer_, Thrower::kWatch, [&] { call->Expire(); });
    }
    due.clear();
  }
}

}  // namespace fulcrum::service
