// A device that computes nothing true but says what it did: each output element is the row's first
// activation plus the weight's tag (its first byte), plus 1000 when the arm is not exact. Launches
// can be held, so that a test decides when the device is busy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "kernels/formats/bf16.h"
#include "scheduler/shard_store.h"
#include "tests/support/cuda_like_ladder.h"
#include "tests/support/random_weights.h"

namespace fulcrum::test {

class FakeBackend : public Backend {
 public:
  static constexpr float kNotExact = 1000;

  explicit FakeBackend(
      DeviceInfo device = {.id = "fake:0", .description = "fake", .caps = kAllCaps}, int slots = 1)
      : device_(std::move(device)), slots_(slots) {}

  class Weight : public ResidentWeight {
   public:
    Weight(WeightSpec spec, std::vector<std::byte> rows)
        : ResidentWeight(std::move(spec), static_cast<int64_t>(rows.size())),
          rows_(std::move(rows)) {}
    absl::StatusOr<uint64_t> Checksum() const override {
      uint64_t sum = 14695981039346656037u;
      for (std::byte b : rows_) sum = (sum ^ std::to_integer<uint64_t>(b)) * 1099511628211u;
      return sum;
    }
    absl::Status FlipBit(int64_t byte, int bit) override {
      rows_[static_cast<size_t>(byte)] ^= static_cast<std::byte>(1 << bit);
      return absl::OkStatus();
    }
    float tag() const { return static_cast<float>(std::to_integer<int>(rows_[0])); }

   private:
    std::vector<std::byte> rows_;
  };

  struct Ran {
    int m = 0;
    std::vector<std::string> arms;
  };

  std::string_view name() const override { return "fake"; }
  const DeviceInfo& device() const override { return device_; }
  std::span<const Arm> ladder() const override { return kCudaLikeLadder; }
  int64_t ResidentBytes(const WeightSpec& spec) const override { return spec.n * spec.row_bytes(); }
  int preferred_slots() const override { return slots_; }
  LaunchShape Shape(const Arm&, const WeightSpec&, int) const override { return {}; }
  bool healthy() const override { return healthy_.load(); }

  absl::StatusOr<std::shared_ptr<ResidentWeight>> Upload(const WeightSource& source) override {
    const WeightSpec& spec = source.spec();
    std::vector<std::byte> rows(static_cast<size_t>(spec.n * spec.row_bytes()));
    if (absl::Status s = source.ReadRows(0, spec.n, rows); !s.ok()) return s;
    return std::make_shared<Weight>(spec, std::move(rows));
  }

  std::unique_ptr<LaunchSlot> NewSlot() override { return std::make_unique<Slot>(); }

  absl::StatusOr<LaunchTimes> Run(LaunchSlot& slot, const Launch& launch) override {
    absl::Status fault;
    {
      absl::MutexLock lock(&mu_);
      Ran ran{.m = launch.m, .arms = {}};
      for (const LaunchTarget& target : launch.targets) ran.arms.emplace_back(target.arm->name);
      ran_.push_back(std::move(ran));
      ++entered_;
      changed_.SignalAll();
      while (permits_ == 0) changed_.Wait(&mu_);
      if (permits_ > 0) --permits_;
      fault = std::exchange(next_fault_, absl::OkStatus());
    }
    if (!fault.ok()) return fault;
    for (size_t i = 0; i < launch.targets.size(); ++i) Fill(slot, launch, i);
    return LaunchTimes{.copy_in = 1e-6, .kernel = 2e-6, .copy_out = 3e-6};
  }

  // Launches block from now on.
  void Hold() {
    absl::MutexLock lock(&mu_);
    permits_ = 0;
  }
  // Lets `n` launches pass, or all and all later ones when negative.
  void Release(int n = -1) {
    absl::MutexLock lock(&mu_);
    permits_ = n < 0 ? n : std::max(permits_, 0) + n;
    changed_.SignalAll();
  }
  // Blocks until `n` launches in all have begun.
  void AwaitLaunches(size_t n) {
    absl::MutexLock lock(&mu_);
    while (entered_ < n) changed_.Wait(&mu_);
  }
  std::vector<Ran> ran() const {
    absl::MutexLock lock(&mu_);
    return ran_;
  }
  // The next launch to pass fails; with `lost` the device is unhealthy from then on.
  void FailNext(absl::Status status, bool lost) {
    absl::MutexLock lock(&mu_);
    next_fault_ = std::move(status);
    if (lost) healthy_ = false;
  }
  void set_healthy(bool healthy) { healthy_ = healthy; }

 private:
  class Slot : public LaunchSlot {
   public:
    absl::Status Reserve(size_t activation_bytes, std::span<const size_t> output_bytes) override {
      activations_.resize(std::max(activations_.size(), activation_bytes / 2));
      if (outputs_.size() < output_bytes.size()) outputs_.resize(output_bytes.size());
      for (size_t i = 0; i < output_bytes.size(); ++i) {
        outputs_[i].resize(std::max(outputs_[i].size(), output_bytes[i]));
      }
      return absl::OkStatus();
    }
    uint16_t* activations() override { return activations_.data(); }
    std::byte* output(size_t target) override { return outputs_[target].data(); }

   private:
    std::vector<uint16_t> activations_;
    std::vector<std::vector<std::byte>> outputs_;
  };

  static void Fill(LaunchSlot& slot, const Launch& launch, size_t target) {
    const auto& weight = static_cast<const Weight&>(*launch.targets[target].weight);
    const bool exact = launch.targets[target].arm->numerics == NumericsClass::kExact;
    std::byte* out = slot.output(target);
    for (int row = 0; row < launch.m; ++row) {
      const float value = Bf16ToF32(slot.activations()[row * weight.spec().k]) + weight.tag() +
                          (exact ? 0 : kNotExact);
      const uint16_t rounded = F32ToBf16(value);
      for (int64_t n = 0; n < weight.spec().n; ++n, out += SizeOf(launch.output_type)) {
        if (launch.output_type == DType::kF32) {
          std::memcpy(out, &value, sizeof(value));
        } else {
          std::memcpy(out, &rounded, sizeof(rounded));
        }
      }
    }
  }

  const DeviceInfo device_;
  const int slots_;
  std::atomic<bool> healthy_{true};
  mutable absl::Mutex mu_;
  absl::CondVar changed_;
  int permits_ ABSL_GUARDED_BY(mu_) = -1;  // launches that may pass; negative: all
  size_t entered_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status next_fault_ ABSL_GUARDED_BY(mu_);
  std::vector<Ran> ran_ ABSL_GUARDED_BY(mu_);
};

// A weight source of shape [n, k] whose first byte is `tag` (1..100: finite in every format).
inline std::shared_ptr<const WeightSource> TaggedWeight(int tag, int64_t n = 4, int64_t k = 128) {
  auto weight = std::make_shared<MemoryWeight>(RandomFp8(n, k, WeightKind::kGaussian, 7));
  weight->mutable_rows()[0] = static_cast<std::byte>(tag);
  return weight;
}

// A shard outside any store.
inline std::shared_ptr<const Shard> MakeShard(FakeBackend& backend, std::string name, int tag,
                                              Family family = Family::kFfnDown) {
  auto shard = std::make_shared<Shard>();
  shard->name = std::move(name);
  shard->family = family;
  shard->source = TaggedWeight(tag);
  shard->weight = *backend.Upload(*shard->source);
  shard->backend = &backend;
  shard->version = 1;
  shard->checksum = *shard->weight->Checksum();
  return shard;
}

}  // namespace fulcrum::test
