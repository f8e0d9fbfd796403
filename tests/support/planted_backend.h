// A backend with a planted fault, for tests: its gated arms are wrong or slow, its launches fail,
// and every launch takes a made-up kernel time, so that what a guard sees is the test's to say.
// Everything else, and every right bit, is the real backend's: the CPU's where none is given.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "kernels/backend_factory.h"
#include "tests/support/passing_backend.h"

namespace fulcrum::test {

// What is planted in the arms behind a lever. Changed while launches run.
struct PlantedArm {
  std::atomic<bool> wrong{false};                        // every output far off
  std::atomic<const ResidentWeight*> wrong_on{nullptr};  // the same, of this weight alone
  std::atomic<bool> one_bit{false};    // the last bit of one output of each row flipped
  std::atomic<bool> fails{false};      // launches of it fail, the device stays healthy
  std::atomic<double> slower{1.0};     // times the made-up kernel time
  std::atomic<double> noise{0.02};     // spread of all kernel times
  std::atomic<int64_t> wrong_rows{0};  // computed so far
};

class PlantedBackend : public PassingBackend {
 public:
  PlantedBackend(std::shared_ptr<PlantedArm> plant, std::unique_ptr<Backend> real)
      : PassingBackend(std::move(real)), plant_(std::move(plant)) {}
  explicit PlantedBackend(std::shared_ptr<PlantedArm> plant, int threads = 1)
      : PlantedBackend(std::move(plant),
                       std::move((*MakeBackends("cpu", {.cpu_threads = threads})).front())) {}

  absl::StatusOr<LaunchTimes> Run(LaunchSlot& slot, const Launch& launch) override {
    bool planted = false;
    for (const LaunchTarget& target : launch.targets) {
      planted |= target.arm->gate.lever != Lever::kAlwaysOpen;
    }
    if (planted && plant_->fails) return absl::InternalError("a planted fault");
    absl::StatusOr<LaunchTimes> times = PassingBackend::Run(slot, launch);
    if (!times.ok()) return times;
    for (size_t i = 0; i < launch.targets.size(); ++i) {
      if (launch.targets[i].arm->gate.lever == Lever::kAlwaysOpen) continue;
      const bool wrong = plant_->wrong || plant_->wrong_on == launch.targets[i].weight;
      if (wrong || plant_->one_bit) Spoil(slot, launch, i);
    }
    times->kernel = 1e-4 * (1 + 0.05 * launch.m) * Noise() * (planted ? plant_->slower.load() : 1);
    return times;
  }

 private:
  void Spoil(LaunchSlot& slot, const Launch& launch, size_t target) {
    const int64_t n = launch.targets[target].weight->spec().n;
    const size_t size = SizeOf(launch.output_type);
    plant_->wrong_rows += launch.m;
    for (int row = 0; row < launch.m; ++row) {
      std::byte* const bytes = slot.output(target) + static_cast<size_t>(row * n) * size;
      if (plant_->one_bit) {
        bytes[0] ^= std::byte{1};
      } else {
        // The exponent of every output: what any slice of columns shows.
        for (int64_t i = 0; i < n; ++i)
          bytes[static_cast<size_t>(i + 1) * size - 1] ^= std::byte{2};
      }
    }
  }
  double Noise() {
    absl::MutexLock lock(&mu_);
    return std::lognormal_distribution<double>(0, plant_->noise)(random_);
  }

  const std::shared_ptr<PlantedArm> plant_;
  absl::Mutex mu_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_){7};
};

}  // namespace fulcrum::test
