// The audit's own word for it: many outputs of every arm that has a reference, at M = 1 to 32, on
// weights and activations of every kind, infinities and NaNs among them, recomputed and found
// right. FULCRUM_AUDIT_OUTPUTS says how many (10^7 for the record in kernels/bench/RESULTS.md).
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "kernels/numerics/splitmix.h"
#include "scheduler/auditor.h"
#include "scheduler/shard_store.h"
#include "tests/support/arm_cases.h"
#include "tests/support/random_weights.h"

namespace fulcrum {
namespace {

constexpr int kOutputsPerLaunch = 256;
// Of one shard, arm and M, so that on CUDA the last of them are a graph's.
constexpr int kLaunches = 20;

int64_t OutputsWanted() {
  int64_t outputs = 50000;
  if (const char* const text = std::getenv("FULCRUM_AUDIT_OUTPUTS"); text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &outputs)) << text;
  }
  return outputs;
}

struct Counts {
  int64_t launches = 0, outputs = 0, wrong = 0, not_judged = 0;
};

class Counter final : public Observer {
 public:
  void OnAudit(const Arm& arm, AuditResult result) override {
    absl::MutexLock lock(&mu_);
    Counts& counts = counts_[&arm];
    if (result == AuditResult::kDropped || result == AuditResult::kError) {
      ++counts.not_judged;
      return;
    }
    ++counts.outputs;
    counts.wrong += result == AuditResult::kMismatch;
  }
  void OnIncident(const Incident& incident) override {
    if (told_.fetch_add(1) >= 10) return;
    ADD_FAILURE() << incident.arm << " on " << incident.shard << ", column " << incident.column
                  << ": expected " << std::hex << incident.expected_bits << ", found "
                  << incident.found_bits;
  }
  void CountLaunch(const Arm& arm) {
    absl::MutexLock lock(&mu_);
    ++counts_[&arm].launches;
  }
  std::map<const Arm*, Counts> counts() const {
    absl::MutexLock lock(&mu_);
    return counts_;
  }

 private:
  mutable absl::Mutex mu_;
  std::map<const Arm*, Counts> counts_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> told_{0};
};

constexpr int64_t kPoolRows = 192;

// Rows of every kind of activations, of a Gaussian with a few special values, and of any bits.
std::vector<uint16_t> PoolOf(int64_t k) {
  constexpr uint16_t kSpecial[] = {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f7f, 0xff7f, 0x0001, 0x8000};
  test::Rng rng(static_cast<uint64_t>(k));
  std::vector<uint16_t> pool;
  for (int64_t row = 0; row < kPoolRows; ++row) {
    const size_t kind = static_cast<size_t>(row) % (std::size(test::kAllActivationKinds) + 2);
    std::vector<uint16_t> x = test::RandomActivations(
        1, k, test::kAllActivationKinds[kind % std::size(test::kAllActivationKinds)],
        static_cast<uint64_t>(row));
    if (kind == 4) {
      for (int i = 0; i < 3; ++i) x[static_cast<size_t>(rng.Below(k))] = kSpecial[rng.Below(8)];
    } else if (kind == 5) {
      for (uint16_t& value : x) value = static_cast<uint16_t>(rng.Next());
    }
    pool.insert(pool.end(), x.begin(), x.end());
  }
  return pool;
}

struct Work {
  std::shared_ptr<const Shard> shard;
  const std::vector<uint16_t>* pool;
  const Arm* arm;
  int m;
};

class NoFalseAlarm : public ::testing::TestWithParam<std::string_view> {
 protected:
  void LoadShards() {
    constexpr std::pair<int64_t, int64_t> kShapes[] = {{640, 1280}, {129, 640},  {1024, 2560},
                                                       {256, 5120}, {200, 1408}, {333, 1280}};
    uint64_t seed = 0;
    for (const WeightFormat format : kAllWeightFormats) {
      for (size_t i = 0; i < std::size(test::kAllWeightKinds); ++i) {
        const auto [n, k] = kShapes[i];
        const std::string name = std::string(Name(format)) + "_" + Name(test::kAllWeightKinds[i]);
        auto shard = store_->Load(
            {.name = name,
             .source = std::make_shared<test::MemoryWeight>(test::RandomWeight(
                 format, n, k, test::kAllWeightKinds[i], ++seed, i % 2 == 0 ? 64 : 128)),
             .device = "",
             .expect_hash = ""});
        ASSERT_TRUE(shard.ok()) << shard.status();
        auto& pool = pools_[k];
        if (pool.empty()) pool = PoolOf(k);
        for (const Arm& arm : backend_->ladder()) {
          if (arm.format != format || !test::Pinned(*backend_, arm)) continue;
          for (int m = arm.m_min; m <= std::min(arm.m_max, kMaxDecodeRows); ++m) {
            work_.push_back({*shard, &pool, &arm, m});
          }
        }
      }
    }
    // In no order, but that a short run too sees something of every arm.
    for (size_t i = work_.size(); i > 1; --i) {
      std::swap(work_[i - 1], work_[SplitMix(i) % i]);
    }
    std::set<const Arm*> begun;
    std::stable_partition(work_.begin(), work_.end(),
                          [&begun](const Work& work) { return begun.insert(work.arm).second; });
    constexpr int64_t kOutputs = kLaunches * kOutputsPerLaunch;
    count_ = std::max(begun.size(), static_cast<size_t>((wanted_ + kOutputs - 1) / kOutputs));
  }

  // One thread's part, with a slot and an auditor of its own.
  void RunAndAudit(uint64_t seed) {
    const std::unique_ptr<LaunchSlot> slot = backend_->NewSlot();
    Auditor auditor(*store_, counter_,
                    {.outputs_per_batch = kOutputsPerLaunch,
                     .max_pending = kLaunches,
                     .scrub_interval = {},
                     .seed = seed});
    test::Rng rng(seed);
    for (size_t i = next_++; i < count_; i = next_++) {
      const Work& work = work_[i % work_.size()];
      const auto n = work.shard->n(), k = work.shard->k();
      const auto rows = static_cast<size_t>(work.m);
      const size_t bytes = rows * static_cast<size_t>(n) * 4;
      ASSERT_TRUE(slot->Reserve(rows * static_cast<size_t>(k) * 2, std::span(&bytes, 1)).ok());
      const DType type = rng.Below(2) == 0 ? DType::kBf16 : DType::kF32;
      const LaunchTarget target = {.arm = work.arm, .weight = work.shard->weight.get()};
      for (int launch = 0; launch < kLaunches; ++launch) {
        const int64_t first = rng.Below(kPoolRows - work.m + 1);
        std::copy_n(work.pool->begin() + first * k, work.m * k, slot->activations());
        const auto ran = backend_->Run(
            *slot, {.targets = std::span(&target, 1), .m = work.m, .output_type = type});
        ASSERT_TRUE(ran.ok()) << work.arm->name << ": " << ran.status();
        counter_.CountLaunch(*work.arm);
        auditor.Offer(1, work.shard, *work.arm, work.m, slot->activations(), slot->output(0), type,
                      0);
      }
      auditor.Flush();
    }
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ShardStore> store_;
  std::map<int64_t, std::vector<uint16_t>> pools_;  // by K
  std::vector<Work> work_;
  Counter counter_;
  const int64_t wanted_ = OutputsWanted();
  size_t count_ = 0;  // of pieces of work; beyond all there are, from the first again
  std::atomic<size_t> next_{0};
};

TEST_P(NoFalseAlarm, InManyOutputsOfEveryArm) {
  test::BackendUnderTest under_test = test::OpenBackend(GetParam());
  FULCRUM_NEED_BACKEND(under_test);
  backend_ = std::move(under_test.backend);
  store_ = std::make_unique<ShardStore>(std::vector{backend_.get()}, nullptr);
  ASSERT_NO_FATAL_FAILURE(LoadShards());

  const absl::Time begin = absl::Now();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([this, i] { RunAndAudit(i + 1); });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);

  Counts all;
  std::printf("%-26s %-10s %10s %12s %8s\n", "arm", "class", "launches", "outputs", "wrong");
  for (const Arm& arm : backend_->ladder()) {
    const auto counted = counter_.counts();
    const auto of_arm = counted.find(&arm);
    if (of_arm == counted.end()) {
      EXPECT_FALSE(test::Pinned(*backend_, arm)) << arm.name << " was not audited";
      continue;
    }
    const Counts& counts = of_arm->second;
    std::printf("%-26s %-10s %10ld %12ld %8ld\n", std::string(arm.name).c_str(),
                std::string(Name(arm.numerics)).c_str(), static_cast<long>(counts.launches),
                static_cast<long>(counts.outputs), static_cast<long>(counts.wrong));
    all.launches += counts.launches;
    all.outputs += counts.outputs;
    all.wrong += counts.wrong;
    all.not_judged += counts.not_judged;
  }
  std::printf("%s: %ld outputs audited in %.1f s on %zu threads, %ld wrong\n",
              backend_->device().id.c_str(), static_cast<long>(all.outputs), seconds,
              threads.size(), static_cast<long>(all.wrong));
  EXPECT_GE(all.outputs, wanted_);
  EXPECT_EQ(all.wrong, 0);
  EXPECT_EQ(all.not_judged, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, NoFalseAlarm, ::testing::ValuesIn(CompiledBackends()),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace fulcrum
