// The loop: one atomic phase that the calls look at when they end, and a thread that moves it on.
// SPDX-License-Identifier: Apache-2.0
#include "service/bench/closed_loop.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/synchronization/mutex.h"

namespace fulcrum::service {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kWarmupSliceSeconds = 0.25;
constexpr double kWarmFaultsPerCall = 0.05;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t MinorFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

class Loop {
 public:
  Loop(const LoopOptions& options, const StartCall& start)
      : options_(options), start_(start), slots_(static_cast<size_t>(options.in_flight)) {}

  LoopResult Run() {
    live_ = options_.in_flight;
    for (int slot = 0; slot < options_.in_flight; ++slot) Start(slot);

    LoopResult result;
    const Clock::time_point begin = Clock::now();
    while (SecondsSince(begin) < options_.max_warmup_seconds && AnyLive()) {
      const int64_t calls = ended_, faults = MinorFaults();
      WaitFor(kWarmupSliceSeconds);
      const double ended = static_cast<double>(ended_ - calls);
      if (ended > 0 && static_cast<double>(MinorFaults() - faults) < kWarmFaultsPerCall * ended) {
        break;
      }
    }
    result.warmup_seconds = SecondsSince(begin);

    const int64_t calls = ended_, faults = MinorFaults();
    const Clock::time_point record = Clock::now();
    recording_ = true;
    WaitFor(options_.seconds);
    recording_ = false;
    result.seconds = SecondsSince(record);
    const double ended = static_cast<double>(ended_ - calls);
    if (ended > 0) result.faults_per_call = static_cast<double>(MinorFaults() - faults) / ended;

    stop_ = true;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return live_ == 0; });
    }
    result.errors = errors_;
    double excluded_us = 0;
    for (const Slot& slot : slots_) {
      excluded_us += slot.excluded_us;
      result.latency_us.insert(result.latency_us.end(), slot.latency_us.begin(),
                               slot.latency_us.end());
    }
    std::sort(result.latency_us.begin(), result.latency_us.end());
    if (!result.latency_us.empty()) {
      result.mean_excluded_us = excluded_us / static_cast<double>(result.latency_us.size());
    }
    return result;
  }

 private:
  struct Slot {
    Clock::time_point begin;
    std::vector<float> latency_us;
    double excluded_us = 0;
  };

  void Start(int index) {
    slots_[static_cast<size_t>(index)].begin = Clock::now();
    start_(index, [this, index](CallEnd end) { Done(index, end); });
  }

  void Done(int index, CallEnd end) {
    Slot& slot = slots_[static_cast<size_t>(index)];
    const double seconds = SecondsSince(slot.begin) - end.excluded_seconds;
    ++ended_;
    if (!end.ok) ++errors_;
    if (end.ok && recording_) {
      slot.latency_us.push_back(static_cast<float>(seconds * 1e6));
      slot.excluded_us += end.excluded_seconds * 1e6;
    }
    if (end.ok && !stop_) {
      Start(index);
      return;
    }
    std::lock_guard lock(mutex_);
    --live_;
    changed_.notify_all();
  }

  bool AnyLive() {
    std::lock_guard lock(mutex_);
    return live_ > 0;
  }

  // Returns early when no call is left.
  void WaitFor(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return live_ == 0; });
  }

  const LoopOptions& options_;
  const StartCall& start_;
  std::vector<Slot> slots_;  // each touched by its own call alone
  std::atomic<bool> recording_{false}, stop_{false};
  std::atomic<int64_t> ended_{0}, errors_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  int live_ = 0;  // guarded by mutex_
};

}  // namespace

double LoopResult::Percentile(double q) const {
  if (latency_us.empty()) return 0;
  const size_t index = static_cast<size_t>(q * static_cast<double>(latency_us.size()));
  return latency_us[std::min(index, latency_us.size() - 1)];
}

LoopResult RunClosedLoop(const LoopOptions& options, const StartCall& start) {
  return Loop(options, start).Run();
}

void SettleProcess() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  // Debian builds Abseil with its search for lock cycles on; it costs every lock of gRPC and ours.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace fulcrum::service
