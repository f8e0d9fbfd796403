// The shadow check against products that are right, wrong and cannot be checked; what it leaves of
// a failure, and what it takes from the canary's allowance.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/shadow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "kernels/numerics/bundle.h"
#include "kernels/numerics/oracle.h"
#include "tests/support/event.h"
#include "tests/support/fake_backend.h"
#include "tests/support/test_call.h"
#include "tests/support/weight_files.h"

namespace fulcrum {
namespace {

using test::FakeBackend;
using test::RandomActivations;

constexpr int kM = 3;
constexpr int64_t kN = 300, kK = 256;

class Recorder : public Observer {
 public:
  void OnShadow(const ShadowEvent& event) override {
    if (hold != nullptr) hold->WaitForNotification();
    absl::MutexLock lock(&mu);
    results.push_back(event.result);
    last = event;
  }
  void OnBundle(std::string_view path) override {
    absl::MutexLock lock(&mu);
    bundles.emplace_back(path);
  }
  test::Event* hold = nullptr;
  absl::Mutex mu;
  std::vector<ShadowResult> results;
  ShadowEvent last;
  std::vector<std::string> bundles;
};

class ShadowTest : public ::testing::Test {
 protected:
  ShadowTest() {
    auto levers = std::make_shared<LeverSnapshot>();
    EXPECT_TRUE(levers->levers.Set("shadow_rate", "1").ok());
    levers->epoch = 42;
    batch_.levers = batch_.control = levers;
    batch_.rows = kM;
    auto shard = std::make_shared<Shard>();
    shard->name = "models/m/shards/s";
    shard->version = 3;
    shard->source = source_;
    shard->weight = *backend_.Upload(*source_);
    shard->backend = &backend_;
    EXPECT_TRUE(ContentHash(*source_, &shard->hash).ok());
    shard_ = shard;
  }
  void OnCanary() {
    auto split = std::make_shared<CanarySplit>();
    split->id = 7;
    split->candidate = batch_.levers;
    split->valve = std::make_shared<CanaryValve>();
    batch_.canary = split;
    batch_.control = std::make_shared<LeverSnapshot>();
  }
  // The arm's product, as a slot would hold it.
  std::vector<std::byte> Output(DType type, NumericsClass numerics = NumericsClass::kBlockfold) {
    std::vector<float> values(kM * kN);
    EXPECT_TRUE(numerics::ReferenceProduct(numerics, *source_, 0, kN, x_, kM, values).ok());
    std::vector<std::byte> bytes(values.size() * SizeOf(type));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t rounded = F32ToBf16(values[i]);
      std::memcpy(bytes.data() + i * SizeOf(type),
                  type == DType::kF32 ? static_cast<const void*>(&values[i]) : &rounded,
                  SizeOf(type));
    }
    return bytes;
  }
  void Offer(const std::vector<std::byte>& output, DType type, bool must = false) {
    const LaunchTarget target{.arm = &arm_, .weight = shard_->weight.get()};
    shadow_->Offer(batch_, Step::kDecode, must, shard_, target, x_.data(), output.data(), type);
  }

  const test::TempDir dir_;
  Recorder recorder_;
  FakeBackend backend_;
  std::shared_ptr<const WeightSource> source_ =
      std::make_shared<test::MemoryWeight>(test::RandomFp8(kN, kK, test::WeightKind::kGaussian, 3));
  std::shared_ptr<const Shard> shard_;
  std::vector<uint16_t> x_ = RandomActivations(kM, kK, test::ActivationKind::kGaussian, 4);
  Arm arm_{.name = "tried", .numerics = NumericsClass::kBlockfold, .gate = {}};
  Batch batch_;
  BundleStore bundles_{dir_.path(), "node-1"};
  std::unique_ptr<Shadow> shadow_ =
      std::make_unique<Shadow>(recorder_, &bundles_, ShadowOptions{.max_pending = 4});
};

TEST_F(ShadowTest, RightProductsPassInEveryTypeAndExactArmsAreNotItsMatter) {
  for (DType type : {DType::kBf16, DType::kF32}) {
    for (int i = 0; i < 20; ++i) {
      Offer(Output(type), type);
      shadow_->Flush();
    }
  }
  EXPECT_EQ(recorder_.results, std::vector<ShadowResult>(40, ShadowResult::kPass));
  EXPECT_EQ(recorder_.last.lever_epoch, 42u);
  EXPECT_GT(recorder_.last.worst_element, 0);
  EXPECT_GT(recorder_.last.worst_row_rms, 0);
  arm_.numerics = NumericsClass::kExact;
  Offer(Output(DType::kF32), DType::kF32);
  shadow_->Flush();
  EXPECT_EQ(recorder_.results.size(), 40u);
  EXPECT_TRUE(recorder_.bundles.empty());
}

TEST_F(ShadowTest, AWrongProductFailsAndLeavesABundleThatHoldsIt) {
  std::vector<std::byte> output = Output(DType::kF32);
  for (size_t i = 3; i < output.size(); i += 4) output[i] ^= std::byte{2};
  Offer(output, DType::kF32);
  shadow_->Flush();
  ASSERT_EQ(recorder_.results, std::vector{ShadowResult::kFail});
  EXPECT_THAT(recorder_.last.detail, ::testing::HasSubstr("OUT OF BUDGET"));
  ASSERT_EQ(recorder_.bundles.size(), 1u);
  const auto bundle = numerics::ReadBundle(recorder_.bundles[0]);
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ(bundle->arm, "tried");
  EXPECT_EQ(bundle->node, "node-1");
  EXPECT_EQ(bundle->shard_hash, shard_->hash);
  EXPECT_EQ(bundle->shard_version, 3u);
  EXPECT_EQ(bundle->rows, kM);
  EXPECT_EQ(bundle->columns, 128);
  EXPECT_EQ(bundle->column % 128, 0);
  EXPECT_EQ(bundle->activations, x_);
  EXPECT_EQ(0, std::memcmp(bundle->outputs.data(), output.data() + bundle->column * 4, 128 * 4));
}

TEST_F(ShadowTest, BundlesAreBounded) {
  std::vector<std::byte> output(kM * kN * 4);
  for (int i = 0; i < 3 * BundleStore::kMostFiles; ++i) {
    Offer(output, DType::kF32);
    shadow_->Flush();
  }
  EXPECT_EQ(static_cast<int>(recorder_.bundles.size()), BundleStore::kMostFiles);
  int files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(dir_.path()))
    ++files;
  EXPECT_EQ(files, BundleStore::kMostFiles);
}

TEST_F(ShadowTest, ABusyThreadDropsAndCountsButNotWhatMustBeChecked) {
  OnCanary();
  test::Event hold;
  recorder_.hold = &hold;
  const auto output = Output(DType::kBf16);
  const LaunchTarget target{.arm = &arm_, .weight = shard_->weight.get()};
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(shadow_->Announce(batch_, {&shard_, 1}, {&target, 1}));
    Offer(output, DType::kBf16, /*must=*/true);
  }
  EXPECT_EQ(batch_.canary->valve->ungraded_rows.load(), 8 * kM);
  // More wait than the bound: a sampled one is dropped, which this thread reports.
  hold.Notify();
  shadow_->Flush();
  EXPECT_EQ(batch_.canary->valve->ungraded_rows.load(), 0);
  EXPECT_EQ(recorder_.results, std::vector<ShadowResult>(8, ShadowResult::kPass));
}

TEST_F(ShadowTest, OnlyTheFirstBatchesOfACandidateMustBeChecked) {
  const LaunchTarget target{.arm = &arm_, .weight = shard_->weight.get()};
  EXPECT_FALSE(shadow_->Announce(batch_, {&shard_, 1}, {&target, 1}));  // no canary
  OnCanary();
  for (int64_t i = 0; i < CanaryValve::kFirstBatches; ++i) {
    ASSERT_TRUE(shadow_->Announce(batch_, {&shard_, 1}, {&target, 1}));
    shadow_->Withdraw(batch_, {&target, 1});
  }
  EXPECT_FALSE(shadow_->Announce(batch_, {&shard_, 1}, {&target, 1}));
  EXPECT_EQ(batch_.canary->valve->ungraded_rows.load(), 0);
  EXPECT_TRUE(batch_.canary->valve->open());
  batch_.canary->valve->ungraded_rows = CanaryValve::kMaxUngradedRows;
  EXPECT_FALSE(batch_.canary->valve->open());
}

TEST_F(ShadowTest, TheRateIsAShare) {
  auto levers = std::make_shared<LeverSnapshot>(*batch_.levers);
  ASSERT_TRUE(levers->levers.Set("shadow_rate", "0.25").ok());
  batch_.levers = levers;
  const auto output = Output(DType::kBf16);
  for (int i = 0; i < 200; ++i) {
    Offer(output, DType::kBf16);
    shadow_->Flush();
  }
  EXPECT_GT(recorder_.results.size(), 25u);
  EXPECT_LT(recorder_.results.size(), 75u);
}

}  // namespace
}  // namespace fulcrum
