// A weight source that ends a load between two reads when the node stops.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::service {

// CANCELLED from the read that finds `*stop` set. The flag is to be let go of once the weight is
// loaded: the weight, and the audits that read it, outlive the flag's owner.
class StoppableSource final : public WeightSource {
 public:
  StoppableSource(std::shared_ptr<const WeightSource> inner, const std::atomic<bool>* stop)
      : inner_(std::move(inner)), stop_(stop) {}

  const WeightSpec& spec() const override { return inner_->spec(); }
  std::span<const float> scales() const override { return inner_->scales(); }
  std::string origin() const override { return inner_->origin(); }
  void ReleasePages() const override { inner_->ReleasePages(); }
  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
    const std::atomic<bool>* stop = stop_.load(std::memory_order_acquire);
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("the node is stopping");
    }
    return inner_->ReadRows(row, count, out);
  }
  void LetGo() { stop_.store(nullptr, std::memory_order_release); }

 private:
  const std::shared_ptr<const WeightSource> inner_;
  std::atomic<const std::atomic<bool>*> stop_;
};

}  // namespace fulcrum::service
