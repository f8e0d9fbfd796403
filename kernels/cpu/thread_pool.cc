// Tickets by compare-and-swap, sleep by atomic wait.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_pool.h"

#include <utility>

#include "hwy/cache_control.h"

namespace fulcrum::cpu {
namespace {

// About 20 us of spinning: longer than the gap between the launches of one layer's projections,
// short enough to leave an idle machine idle.
constexpr int kSpins = 600;

constexpr uint64_t kNoTicket = 0xffffffffu;  // more items than any launch has

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunErased(int64_t items, const void* context, Call call) {
  if (items <= 0) return;
  if (workers_.empty() || items == 1) {
    for (int64_t item = 0; item < items; ++item) call(context, item, 0);
    return;
  }
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  const uint64_t first_ticket = static_cast<uint64_t>(epoch) << 32;
  // No tickets while the launch is written: a worker still holding the last launch's final ticket
  // may see the new item count, and must then find that its ticket is void.
  tickets_.store(first_ticket | kNoTicket, std::memory_order_relaxed);
  items_.store(items, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  call_.store(call, std::memory_order_release);
  done_.store(0, std::memory_order_relaxed);
  tickets_.store(first_ticket, std::memory_order_release);
  epoch_.store(epoch, std::memory_order_release);
  epoch_.notify_all();
  TakeItems(epoch, 0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != items; ++spins) {
    // An item takes long: a worker may have lost its core, so give ours away now and then.
    spins % 64 == 63 ? std::this_thread::yield() : hwy::Pause();
  }
  if (threw_.load(std::memory_order_acquire)) Rethrow();
}

void ThreadPool::Keep(std::exception_ptr thrown) {
  absl::MutexLock lock(&thrown_mu_);
  if (thrown_ == nullptr) thrown_ = std::move(thrown);
  threw_.store(true, std::memory_order_release);
}

void ThreadPool::Rethrow() {
  std::exception_ptr thrown;
  {
    absl::MutexLock lock(&thrown_mu_);
    thrown = std::exchange(thrown_, nullptr);
    threw_.store(false, std::memory_order_relaxed);
  }
  std::rethrow_exception(thrown);
}

void ThreadPool::TakeItems(uint32_t epoch, int thread) {
  uint64_t ticket = tickets_.load(std::memory_order_acquire);
  for (;;) {
    const int64_t items = items_.load(std::memory_order_acquire);
    const void* const context = context_.load(std::memory_order_acquire);
    const Call call = call_.load(std::memory_order_acquire);
    const auto item = static_cast<int64_t>(ticket & kNoTicket);
    if (ticket >> 32 != epoch || item >= items) return;
    if (!tickets_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
      continue;
    }
    try {  // here it would end the process; the launch is the caller's, and so is what it threw
      call(context, item, thread);
    } catch (...) {
      Keep(std::current_exception());
    }
    done_.fetch_add(1, std::memory_order_release);
    ticket = tickets_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    uint32_t epoch = epoch_.load(std::memory_order_acquire);
    for (int spins = 0; epoch == seen && spins < kSpins; ++spins) {
      hwy::Pause();
      epoch = epoch_.load(std::memory_order_acquire);
    }
    if (epoch == seen) {
      epoch_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = epoch;
    TakeItems(epoch, thread);
  }
}

}  // namespace fulcrum::cpu
