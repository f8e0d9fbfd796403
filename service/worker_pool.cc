// Threads over one bounded queue.
// SPDX-License-Identifier: Apache-2.0
#include "service/worker_pool.h"

#include <utility>

#include "scheduler/exceptions.h"

namespace fulcrum::service {

WorkerPool::WorkerPool(int threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WorkerPool::~WorkerPool() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::Run(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  if (stopping_ || waiting_.size() >= max_waiting_) return false;
  waiting_.push_back(std::move(work));
  changed_.Signal();
  return true;
}

void WorkerPool::Loop() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mu_);
      while (!stopping_ && waiting_.empty()) changed_.Wait(&mu_);
      if (waiting_.empty()) return;  // stopping, and nothing is left
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    (void)Caught(work);  // whose outcome is its own to tell: nothing it throws ends the thread
  }
}

}  // namespace fulcrum::service
