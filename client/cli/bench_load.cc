// The callers, the schedule and the window.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench_load.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cli/machine.h"

namespace fulcrum::cli {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(5);  // how long a failed caller pauses
constexpr absl::Duration kProgressEvery = absl::Milliseconds(500);
constexpr absl::Duration kSettleWindow = absl::Milliseconds(250);
constexpr absl::Duration kSettleLimit = absl::Seconds(8);  // beyond the warm-up asked for
constexpr double kSettledFaultsPerCall = 1;

ArrivalKind KindOf(const std::string& name) {
  if (name == "constant") return ArrivalKind::kConstant;
  return name == "burst" ? ArrivalKind::kBurst : ArrivalKind::kPoisson;
}

}  // namespace

// One call at a time; its fields are the caller's that holds it: the sender until the call is sent,
// then the reply's callback.
struct BenchLoad::Caller {
  size_t index = 0;
  client::ProjectStream* stream = nullptr;
  Sent sent;
};

BenchLoad::BenchLoad(client::Client* client, const BenchOptions& options,
                     std::vector<BenchCall> calls, ReplyChecker* checker,
                     absl::Duration call_timeout)
    : client_(client),
      options_(options),
      calls_(std::move(calls)),
      checker_(checker),
      call_timeout_(call_timeout),
      open_loop_(options.rate > 0),
      arrivals_(KindOf(options.arrivals), options.rate, options.burst, options.seed) {
  if (options.stream) {
    client::StreamOptions stream;
    stream.max_in_flight = options.clients;
    // A node that never answers must not hold the run for good.
    stream.timeout = absl::Seconds(options.warmup + options.seconds) + kSettleLimit + call_timeout;
    for (int i = 0; i < options.channels; ++i) streams_.push_back(client->OpenStream(stream));
  }
  for (int i = 0; i < options.clients; ++i) {
    auto caller = std::make_unique<Caller>();
    caller->index = static_cast<size_t>(i);
    if (!streams_.empty()) caller->stream = streams_[caller->index % streams_.size()].get();
    callers_.push_back(std::move(caller));
  }
}

BenchLoad::~BenchLoad() {
  stopping_ = true;
  AwaitQuiet();
}

void BenchLoad::AwaitQuiet() {
  absl::MutexLock lock(&mu_);
  while (busy_ != 0) changed_.Wait(&mu_);
}

bool BenchLoad::Sampled(size_t index) const {
  // The share's integer part moves on at exactly that share of the indices.
  const double share = options_.verify_sample;
  return static_cast<int64_t>(static_cast<double>(index + 1) * share) >
         static_cast<int64_t>(static_cast<double>(index) * share);
}

void BenchLoad::Send(Caller& caller, absl::Time from) {
  caller.sent = {.from = from,
                 .call = next_call_.fetch_add(1, std::memory_order_relaxed),
                 .counted = measuring_.load(std::memory_order_relaxed)};
  const BenchCall& call = calls_[caller.sent.call % calls_.size()];
  if (caller.stream != nullptr) {
    const absl::Status taken = caller.stream->TrySend(
        *call.request, [this, &caller](absl::StatusOr<v1::ProjectResponse> reply) {
          Answered(caller, std::move(reply));
        });
    if (!taken.ok()) Answered(caller, taken);
    return;
  }
  client::CallOptions options;
  options.timeout = call_timeout_;
  options.retry = options_.retry;
  client_->ProjectAsync(
      call.request, options,
      [this, &caller](absl::StatusOr<v1::ProjectResponse> reply, const client::CallInfo&) {
        Answered(caller, std::move(reply));
      });
}

void BenchLoad::Answered(Caller& caller, absl::StatusOr<v1::ProjectResponse> reply) {
  const absl::Time now = absl::Now();
  answered_.fetch_add(1, std::memory_order_relaxed);
  const BenchCall& call = calls_[caller.sent.call % calls_.size()];
  if (caller.sent.counted) {
    if (reply.ok()) {
      Recorder::Reply record{
          .latency = now - caller.sent.from,
          .in_window = absl::ToUnixNanos(now) <= window_end_ns_.load(std::memory_order_relaxed),
          .rows = call.request->rows(),
          .references = {}};
      if (Sampled(caller.sent.call)) {
        record.match = checker_->Check(call.payload, *reply, &record.references);
      }
      recorder_.Ok(caller.index, record, *reply);
    } else {
      recorder_.Error(caller.index, reply.status());
    }
  }
  if (!open_loop_ && reply.ok() && !stopping_.load(std::memory_order_relaxed)) {
    Send(caller, absl::Now());
  } else {
    Free(caller);
  }
}

void BenchLoad::Free(Caller& caller) {
  absl::MutexLock lock(&mu_);
  (open_loop_ ? idle_ : parked_).push_back(&caller);
  --busy_;
  changed_.SignalAll();
}

void BenchLoad::SendParked() {
  std::vector<Caller*> ready;
  {
    absl::MutexLock lock(&mu_);
    ready.swap(parked_);
    busy_ += static_cast<int>(ready.size());
  }
  for (Caller* const caller : ready) Send(*caller, absl::Now());
}

void BenchLoad::SendDue(absl::Time until) {
  while (next_due_ <= absl::Now() && next_due_ < until) {
    Caller* caller = nullptr;
    {
      absl::MutexLock lock(&mu_);
      while (idle_.empty()) {
        if (changed_.WaitWithDeadline(&mu_, until) && idle_.empty()) return;
      }
      caller = idle_.back();
      idle_.pop_back();
      ++busy_;
    }
    latest_send_s_ = std::max(latest_send_s_, absl::ToDoubleSeconds(absl::Now() - next_due_));
    Send(*caller, next_due_);
    next_due_ = schedule_start_ + absl::Seconds(arrivals_.Next());
  }
}

void BenchLoad::Drive(absl::Time end, const std::function<void(const std::string&)>& progress) {
  absl::Time next_line = absl::Now() + kProgressEvery;
  int64_t answered = answered_;
  while (absl::Now() < end) {
    if (open_loop_) {
      SendDue(end);
      absl::SleepFor(std::min({kTick, next_due_ - absl::Now(), end - absl::Now()}));
    } else {
      SendParked();
      absl::SleepFor(std::min(kTick, end - absl::Now()));
    }
    if (progress && absl::Now() >= next_line) {
      const int64_t calls = answered_;
      const Tally so_far = recorder_.Merged();
      progress(absl::StrFormat(
          "%s  %.0f calls/s  p50 %.0f us  p99 %.0f us  %d errors  %d mismatches",
          measuring_ ? "measuring" : "warming up",
          static_cast<double>(calls - answered) / absl::ToDoubleSeconds(kProgressEvery),
          so_far.latency.Percentile(0.5) / 1e3, so_far.latency.Percentile(0.99) / 1e3,
          so_far.error_count, so_far.mismatches));
      answered = calls;
      next_line = absl::Now() + kProgressEvery;
    }
  }
}

void BenchLoad::WarmUp(const std::function<void(const std::string&)>& progress,
                       BenchResult* result) {
  const absl::Time start = absl::Now();
  const absl::Time asked = start + absl::Seconds(options_.warmup);
  do {
    const int64_t calls = answered_;
    const Usage usage = ReadUsage();
    Drive(absl::Now() + kSettleWindow, progress);
    result->warmup_faults_per_call = static_cast<double>(ReadUsage().faults - usage.faults) /
                                     static_cast<double>(std::max<int64_t>(answered_ - calls, 1));
  } while (absl::Now() < asked || (result->warmup_faults_per_call > kSettledFaultsPerCall &&
                                   absl::Now() < asked + kSettleLimit));
  result->warmup_seconds = absl::ToDoubleSeconds(absl::Now() - start);
  result->warmup_calls = answered_;
}

BenchResult BenchLoad::Run(const std::function<void(const std::string&)>& progress) {
  BenchResult result;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& caller : callers_) (open_loop_ ? idle_ : parked_).push_back(caller.get());
  }
  schedule_start_ = absl::Now();
  next_due_ = schedule_start_;
  if (open_loop_) next_due_ += absl::Seconds(arrivals_.Next());
  if (options_.warmup > 0) WarmUp(progress, &result);

  latest_send_s_ = 0;
  const Usage before = ReadUsage();
  const int64_t calls_before = answered_;
  const absl::Time start = absl::Now();
  const absl::Time end = start + absl::Seconds(options_.seconds);
  window_end_ns_ = absl::ToUnixNanos(end);
  measuring_ = true;
  Drive(end, progress);
  measuring_ = false;
  stopping_ = true;
  const Usage after = ReadUsage();
  result.faults_per_call = static_cast<double>(after.faults - before.faults) /
                           static_cast<double>(std::max<int64_t>(answered_ - calls_before, 1));
  result.cpu_seconds = after.cpu_seconds - before.cpu_seconds;
  result.seconds = absl::ToDoubleSeconds(end - start);
  result.latest_send_s = latest_send_s_;
  // Calls sent in the window count to the last one: leaving out the slow ones would flatter.
  AwaitQuiet();
  result.tally = recorder_.Merged();
  return result;
}

}  // namespace fulcrum::cli
