// The live audit against outputs that the reference itself made, and against planted faults.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/auditor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/numerics/oracle.h"
#include "tests/support/event.h"
#include "tests/support/fake_backend.h"
#include "tests/support/recording_observer.h"

namespace fulcrum {
namespace {

using test::FakeBackend;
using test::RandomActivations;
using test::RecordingObserver;

constexpr int kM = 3;
constexpr int64_t kN = 5, kK = 256;

class AuditorTest : public ::testing::Test {
 protected:
  // A product of the arm's class, as a launch slot would hold it.
  std::vector<std::byte> Output(NumericsClass numerics, DType type) {
    std::vector<float> values(kM * kN);
    EXPECT_TRUE(numerics::ReferenceProduct(numerics, *shard_->source, 0, kN, x_, kM, values).ok());
    std::vector<std::byte> bytes;
    for (float value : values) {
      const float stored = CanonicalF32(value);
      const uint16_t rounded = F32ToBf16(value);
      const auto* at = type == DType::kF32 ? reinterpret_cast<const std::byte*>(&stored)
                                           : reinterpret_cast<const std::byte*>(&rounded);
      bytes.insert(bytes.end(), at, at + SizeOf(type));
    }
    return bytes;
  }
  void Offer(const std::vector<std::byte>& output, DType type, double rate = 1) {
    auditor_->Offer(rate, shard_, arm_, kM, x_.data(), output.data(), type, 42);
    auditor_->Flush();
  }

  FakeBackend backend_;
  RecordingObserver observer_;
  ShardStore store_{{&backend_}, nullptr};
  std::shared_ptr<const Shard> shard_ =
      *store_.Load({.name = "s",
                    .family = Family::kFfnDown,
                    .source = std::make_shared<test::MemoryWeight>(
                        test::RandomFp8(kN, kK, test::WeightKind::kGaussian, 3)),
                    .device = "",
                    .expect_hash = ""});
  std::vector<uint16_t> x_ = RandomActivations(kM, kK, test::ActivationKind::kGaussian, 4);
  Arm arm_ = {.name = "arm", .gate = {}};
  std::unique_ptr<Auditor> auditor_ = std::make_unique<Auditor>(
      store_, observer_, AuditorOptions{.outputs_per_batch = 50, .scrub_interval = {}});
};

TEST_F(AuditorTest, RightBitsMatchInEveryClassAndType) {
  for (NumericsClass numerics :
       {NumericsClass::kExact, NumericsClass::kMma, NumericsClass::kBlockfold}) {
    arm_.numerics = numerics;
    for (DType type : {DType::kBf16, DType::kF32}) Offer(Output(numerics, type), type);
  }
  EXPECT_EQ(observer_.totals().audits[AuditResult::kMatch], 6 * 50);
  EXPECT_EQ(observer_.totals().audits.size(), 1u);
}

TEST_F(AuditorTest, OneFlippedBitOfOneColumnIsFoundAndDescribed) {
  std::vector<std::byte> output = Output(NumericsClass::kExact, DType::kF32);
  for (int row = 0; row < kM; ++row) output[(row * kN + 2) * 4] ^= std::byte{1};
  Offer(output, DType::kF32);
  const auto totals = observer_.totals();
  EXPECT_GT(totals.audits.at(AuditResult::kMismatch), 0);
  EXPECT_GT(totals.audits.at(AuditResult::kMatch), 0);
  ASSERT_FALSE(totals.incidents.empty());
  for (const Incident& incident : totals.incidents) {
    EXPECT_EQ(incident.what, "audit");
    EXPECT_EQ(incident.shard, "s");
    EXPECT_EQ(incident.shard_hash, shard_->hash);
    EXPECT_EQ(incident.shard_version, shard_->version);
    EXPECT_EQ(incident.device, "fake:0");
    EXPECT_EQ(incident.arm, "arm");
    EXPECT_EQ(incident.column, 2);
    EXPECT_EQ(incident.expected_bits ^ incident.found_bits, 1u);
    EXPECT_EQ(incident.lever_epoch, 42u);
  }
}

TEST_F(AuditorTest, TheClassIsPartOfWhatIsChecked) {
  arm_.numerics = NumericsClass::kMma;
  Offer(Output(NumericsClass::kExact, DType::kF32), DType::kF32);
  EXPECT_GT(observer_.totals().audits[AuditResult::kMismatch], 0);
}

TEST_F(AuditorTest, TheRateIsAShareAndW8A8IsNeverAudited) {
  const auto output = Output(NumericsClass::kExact, DType::kBf16);
  Offer(output, DType::kBf16, 0);
  arm_.numerics = NumericsClass::kW8A8;
  Offer(output, DType::kBf16, 1);
  EXPECT_TRUE(observer_.totals().audits.empty());
  arm_.numerics = NumericsClass::kExact;
  for (int i = 0; i < 200; ++i) Offer(output, DType::kBf16, 0.25);
  const auto batches = observer_.totals().audits.at(AuditResult::kMatch) / 50;
  EXPECT_GT(batches, 20);  // of 200 at a share of 1/4; the generator is seeded
  EXPECT_LT(batches, 80);
}

// Where the emulator is not the device's model its bits are no reference, whatever the output is.
TEST_F(AuditorTest, MmaIsNotAuditedOnADeviceThatDoesNotFollowTheModel) {
  for (const auto& [probe, audits] :
       {std::pair{MmaProbe{}, 50}, std::pair{MmaProbe{.outputs = 9, .agreeing = 9}, 50},
        std::pair{MmaProbe{.outputs = 9, .agreeing = 8}, 0}}) {
    FakeBackend device({.id = "fake:1", .description = "", .caps = kCapMma, .mma_probe = probe});
    auto moved = std::make_shared<Shard>(*shard_);
    moved->backend = &device;
    shard_ = moved;
    arm_.numerics = NumericsClass::kMma;
    const int64_t before = observer_.totals().audits[AuditResult::kMatch];
    Offer(Output(NumericsClass::kMma, DType::kF32), DType::kF32);
    EXPECT_EQ(observer_.totals().audits[AuditResult::kMatch], before + audits);
    // The other classes need no model.
    arm_.numerics = NumericsClass::kExact;
    Offer(Output(NumericsClass::kExact, DType::kF32), DType::kF32);
    EXPECT_EQ(observer_.totals().audits[AuditResult::kMatch], before + audits + 50);
  }
  EXPECT_TRUE(observer_.totals().incidents.empty());
}

TEST_F(AuditorTest, WhatCannotBeHeldIsDroppedAndCounted) {
  auditor_ = std::make_unique<Auditor>(
      store_, observer_,
      AuditorOptions{.outputs_per_batch = 2, .max_pending = 0, .scrub_interval = {}});
  Offer(Output(NumericsClass::kExact, DType::kBf16), DType::kBf16);
  EXPECT_EQ(observer_.totals().audits[AuditResult::kDropped], 2);
  EXPECT_EQ(observer_.totals().audits.size(), 1u);
}

TEST_F(AuditorTest, AScrubFindsOneFlippedBitOfAResidentWeight) {
  auditor_->ScrubAll();
  EXPECT_EQ(observer_.totals().audits[AuditResult::kMatch], 1);
  ASSERT_TRUE(shard_->weight->FlipBit(kN * kK - 1, 7).ok());
  auditor_->ScrubAll();
  const auto totals = observer_.totals();
  EXPECT_EQ(totals.audits.at(AuditResult::kMismatch), 1);
  ASSERT_EQ(totals.incidents.size(), 1u);
  EXPECT_EQ(totals.incidents[0].what, "scrub");
  EXPECT_EQ(totals.incidents[0].shard, "s");
  EXPECT_EQ(totals.incidents[0].column, -1);
}

TEST_F(AuditorTest, ScrubsByItselfShardByShard) {
  class Counting : public RecordingObserver {
   public:
    void OnAudit(const Arm& arm, AuditResult result) override {
      RecordingObserver::OnAudit(arm, result);
      EXPECT_EQ(arm.name, "scrub");
      if (++scrubs == 3) enough.Notify();
    }
    int scrubs = 0;
    test::Event enough;
  } observer;
  Auditor auditor(store_, observer, {.scrub_interval = absl::Microseconds(1)});
  observer.enough.WaitForNotification();
}

TEST_F(AuditorTest, WhatCannotBeReadIsToldWithTheShardAndTheReason) {
  class Gone : public test::MemoryWeight {
   public:
    Gone() : MemoryWeight(test::RandomFp8(kN, kK, test::WeightKind::kGaussian, 3)) {}
    absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
      if (gone) return absl::DataLossError("the file changed");
      return MemoryWeight::ReadRows(row, count, out);
    }
    std::atomic<bool> gone = false;
  };
  const auto source = std::make_shared<Gone>();
  shard_ = *store_.Load(
      {.name = "g", .family = Family::kFfnDown, .source = source, .device = "", .expect_hash = ""});
  source->gone = true;
  Offer(std::vector<std::byte>(kM * kN * 2), DType::kBf16);
  const auto totals = observer_.totals();
  EXPECT_EQ(totals.audits.at(AuditResult::kError), 50);
  EXPECT_EQ(totals.audit_errors.at("g").message(), "the file changed");
}

}  // namespace
}  // namespace fulcrum
