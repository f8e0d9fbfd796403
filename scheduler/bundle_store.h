// Where checkers leave bundles (kernels/numerics/bundle.h) of what they found wrong: a folder, and
// a bound on how many, so that a device that computes nothing but errors does not fill the disk.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/numerics/bundle.h"
#include "scheduler/shard_store.h"

namespace fulcrum {

class BundleStore {
 public:
  static constexpr int kMostFiles = 16;  // in one life of the node

  // An empty folder: nothing is ever written. `node` goes into the bundles.
  BundleStore(std::string folder, std::string node)
      : folder_(std::move(folder)), node_(std::move(node)) {}

  // What a bundle says of a shard; the caller adds the product.
  static numerics::Bundle About(const Shard& shard);
  // Sets the bundle's time and node. Returns the path; empty when none was written. Thread-safe; it
  // flushes to the disk, so it is for checkers' threads.
  std::string Write(numerics::Bundle bundle) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::string folder_, node_;
  absl::Mutex mu_;
  int files_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace fulcrum
