// A small fixed pool that runs the items of one launch at a time. The calling thread takes part;
// workers spin for some microseconds after a launch, then sleep. A launch allocates nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace fulcrum::cpu {

class ThreadPool {
 public:
  // `threads` >= 1, the caller of Run included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item, thread) for every item in [0, items), thread in [0, threads()), and returns
  // when all have returned; throws what the first of them threw. One Run at a time: the backend's
  // launch lock sees to that. `body` must not call Run.
  template <class Body>
  void Run(int64_t items, const Body& body) {
    RunErased(items, &body, [](const void* context, int64_t item, int thread) {
      (*static_cast<const Body*>(context))(item, thread);
    });
  }

 private:
  using Call = void (*)(const void* context, int64_t item, int thread);

  void RunErased(int64_t items, const void* context, Call call);
  void WorkerLoop(int thread);
  void TakeItems(uint32_t epoch, int thread);
  void Keep(std::exception_ptr thrown);
  void Rethrow();

  // One launch. The tickets carry the launch's epoch in their upper half, so a worker that wakes
  // late finds its epoch gone and takes nothing; what it read of the fields below is then unused.
  std::atomic<uint64_t> tickets_{0};  // epoch << 32 | next item
  std::atomic<int64_t> items_{0};
  std::atomic<const void*> context_{nullptr};
  std::atomic<Call> call_{nullptr};
  std::atomic<int64_t> done_{0};

  std::atomic<uint32_t> epoch_{0};  // what workers wait on
  std::atomic<bool> stop_{false};
  std::atomic<bool> threw_{false};
  absl::Mutex thrown_mu_;
  std::exception_ptr thrown_ ABSL_GUARDED_BY(thrown_mu_);
  std::vector<std::thread> workers_;
};

}  // namespace fulcrum::cpu
