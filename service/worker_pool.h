// A few threads for work that blocks (loading, replacing and unloading shards), so that gRPC's
// event threads never do. Work runs in the order it came; the bound on waiting work is the caller's
// error to report.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace fulcrum::service {

class WorkerPool {
 public:
  WorkerPool(int threads, size_t max_waiting);
  ~WorkerPool();  // finishes what was taken

  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when max_waiting pieces of work wait already; `work` was not taken then.
  bool Run(std::function<void()> work);

 private:
  void Loop();

  const size_t max_waiting_;
  absl::Mutex mu_;
  absl::CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace fulcrum::service
