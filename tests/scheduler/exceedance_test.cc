// The latency guards' arithmetic: exact cases of a block, what the evidence promises, and the two
// rates that are stated, measured over simulated canaries: false alarms and detection.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/exceedance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/ladder/arm.h"
#include "scheduler/canary_comparison.h"

namespace fulcrum {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(100);
constexpr absl::Duration kWindow = absl::Seconds(10);

TEST(QuantileBlocks, HalfOfTheControlsAreFromBeforeTheCanaryAndNoneIsUsedTwice) {
  QuantileBlocks blocks(kMedian, 1.0, kWindow);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(blocks.Add(false, 1, kStart));
  EXPECT_FALSE(blocks.Add(true, 2, kStart));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(blocks.Add(false, 3, kStart));
  // Five from before, four after: 1 1 1 1 1 3 3 3 3.
  EXPECT_EQ(blocks.Add(false, 3, kStart), 1.0);
  // The block is closed; the next takes nine new ones.
  EXPECT_FALSE(blocks.Add(true, 2, kStart));
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(blocks.Add(false, 3, kStart));
  EXPECT_EQ(blocks.Add(false, 3, kStart), 0.0);
}

TEST(QuantileBlocks, TheOutcomeIsTheShareOfTheCanaryTimesAboveTheLimit) {
  QuantileBlocks blocks(kMedian, 1.5, kWindow);
  for (int i = 0; i < 5; ++i) blocks.Add(false, 2, kStart);
  for (double seconds : {2.0, 3.0, 3.1, 9.0}) blocks.Add(true, seconds, kStart);
  for (int i = 0; i < 3; ++i) blocks.Add(false, 2, kStart);
  EXPECT_EQ(blocks.Add(false, 2, kStart), 0.5);  // equal to the limit is not above it
}

TEST(QuantileBlocks, OtherLoadIsNotCompared) {
  QuantileBlocks blocks(kMedian, 1.0, kWindow);
  for (int i = 0; i < 5; ++i) blocks.Add(false, 1, kStart);
  EXPECT_FALSE(blocks.Add(true, 9, kStart + kWindow * 2));  // the five are too old
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(blocks.Add(false, 1, kStart + kWindow * 2));
  EXPECT_FALSE(blocks.Add(false, 1, kStart + kWindow * 4));  // and now the canary's is
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(blocks.Add(false, 1, kStart + kWindow * 4));
}

TEST(Evidence, GrowsWithWhatSpeaksAgainstTheClaimAndNeverBelowNothing) {
  Evidence evidence(0.5);
  EXPECT_EQ(evidence.value(), 1);
  for (int i = 0; i < 20; ++i) evidence.Add(1);
  EXPECT_GT(evidence.value(), 1e4);
  Evidence against(0.5);
  for (int i = 0; i < 10000; ++i) against.Add(0);
  EXPECT_LT(against.value(), 1);
  EXPECT_TRUE(std::isfinite(against.log_value()));
  for (int i = 0; i < 100000; ++i) evidence.Add(1);
  EXPECT_TRUE(std::isfinite(evidence.log_value()));
}

// Kernel times of a made-up node: three families, a few row counts each with its own speed, noise,
// rare stalls, and a load that drifts.
class Simulation {
 public:
  explicit Simulation(uint64_t seed, unsigned cells = 3) : random_(seed), cells_(cells) {}

  struct Result {
    bool alarm = false;
    int canary_batches = 0;  // until then
  };
  // `ratio`: how much slower the canary is.
  Result Run(double ratio, double noise, double p50_limit, double p99_limit, int batches) {
    CanaryComparison comparison(p50_limit, p99_limit);
    std::lognormal_distribution<double> spread(0, noise);
    Result result;
    for (int i = 0; i < batches; ++i) {
      const absl::Time at = kStart + absl::Milliseconds(i);
      const bool canary = Unit() < 0.05;
      const int family = static_cast<int>(random_() % cells_);
      const int rows = 1 << random_() % cells_;
      double seconds = 1e-4 * (1 + family) * (1 + 0.1 * rows) * spread(random_);
      seconds *= 1 + 0.3 * std::sin(i / 500.0);      // the load of the machine
      if (Unit() < 0.01) seconds *= 1 + 3 * Unit();  // a stall
      if (canary) {
        seconds *= ratio;
        ++result.canary_batches;
      }
      ComparisonCell cell{.device = &kControl,
                          .family = static_cast<Family>(family),
                          .rows = rows,
                          .weights = {{WeightFormat::kFp8Block128, 512, 512, &kControl}}};
      comparison.Add(cell, canary ? &kCanary : nullptr, nullptr, seconds, at);
      if (comparison.finding().has_value()) {
        result.alarm = true;
        return result;
      }
    }
    return result;
  }

 private:
  double Unit() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  static constexpr Arm kControl{.name = "control"}, kCanary{.name = "canary"};
  std::mt19937_64 random_;
  const unsigned cells_;  // families, and row counts of each
};

constexpr int kRuns = 1000;

// The hardest cases that must not alarm: both sides alike, and limits of 1, so that every quantile
// is exactly on its limit; one cell, where all evidence is in one place, and nine. The promise is
// 1 %.
TEST(LatencyGuards, OfAThousandCanariesOnTheirLimitAtMostOneInAHundredIsReverted) {
  for (unsigned cells : {1, 3}) {
    int alarms = 0;
    for (int run = 0; run < kRuns; ++run) {
      Simulation simulation(static_cast<uint64_t>(run), cells);
      alarms += simulation.Run(1, 0.02 + 0.02 * (run % 10), 1, 1, 10000).alarm;
    }
    RecordProperty(cells == 1 ? "alarms_one_cell" : "alarms_nine_cells", alarms);
    EXPECT_LE(alarms, kRuns / 100);
  }
}

TEST(LatencyGuards, OfAThousandCanariesLikeTheirControlNextToNoneIsReverted) {
  int alarms = 0;
  for (int run = 0; run < kRuns; ++run) {
    alarms += Simulation(static_cast<uint64_t>(kRuns + run))
                  .Run(1, 0.02 + 0.02 * (run % 10), 1.02, 1.05, 6000)
                  .alarm;
  }
  RecordProperty("alarms", alarms);
  EXPECT_LE(alarms, kRuns / 1000);
}

TEST(LatencyGuards, ACanaryFivePercentSlowerIsFound) {
  int found = 0, batches = 0;
  constexpr int kSlow = 100;
  for (int run = 0; run < kSlow; ++run) {
    const auto result =
        Simulation(static_cast<uint64_t>(5000 + run)).Run(1.05, 0.05, 1.02, 1.05, 40000);
    found += result.alarm;
    batches += result.canary_batches;
  }
  RecordProperty("found", found);
  RecordProperty("canary_batches", batches / kSlow);
  EXPECT_GE(found, 99);
}

TEST(LatencyGuards, TheFindingSaysWhatWasMeasured) {
  CanaryComparison comparison(1.02, INFINITY);
  static constexpr Arm kControl{.name = "control"}, kCanary{.name = "canary"};
  const ComparisonCell cell{.device = &comparison,
                            .family = Family::kFfnDown,
                            .rows = 6,
                            .weights = {{WeightFormat::kFp8Block128, 512, 512, &kControl}}};
  for (int i = 0; i < 2000 && !comparison.finding(); ++i) {
    const bool canary = i % 10 == 5;
    comparison.Add(cell, canary ? &kCanary : nullptr, nullptr, canary ? 1.1e-3 : 1e-3, kStart);
  }
  ASSERT_TRUE(comparison.finding().has_value());
  EXPECT_THAT(comparison.finding()->text,
              ::testing::HasSubstr("kernel p50 of ffn_down decode, 5 to 8 rows: canary 1100.0 us, "
                                   "control 1000.0 us, ratio 1.100 (limit 1.02)"));
  const auto rows = comparison.Rows();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].bucket, (RowBucket{5, 8}));
  EXPECT_EQ(rows[0].control_ran->name, "control");
  EXPECT_EQ(rows[0].canary_ran->name, "canary");
  EXPECT_GT(comparison.comparable(true), 0);
}

// Sides that meet shapes in other proportions, as by shard: a table of all batches would show the
// shapes, not the candidate.
TEST(ComparisonTable, ShowsWhatBothSidesDidAndNothingElse) {
  CanaryComparison comparison(INFINITY, INFINITY);
  static constexpr Arm kControl{.name = "control"}, kCanary{.name = "canary"};
  const auto add = [&](int64_t n, bool canary, double seconds, int times) {
    const ComparisonCell cell{.device = &comparison,
                              .family = Family::kAttnQkv,
                              .rows = 8,
                              .weights = {{WeightFormat::kFp8Block128, n, 512, &kControl}}};
    for (int i = 0; i < times; ++i) {
      comparison.Add(cell, canary ? &kCanary : nullptr, nullptr, seconds, kStart);
    }
  };
  add(200, true, 1e-3, 100);
  add(768, false, 3e-3, 50);
  ASSERT_EQ(comparison.Rows().size(), 1u);
  CanaryComparison::Row row = comparison.Rows()[0];
  EXPECT_EQ(row.control_batches, 0);
  EXPECT_EQ(row.canary_batches, 0);
  EXPECT_EQ(row.control_p50, 0);
  EXPECT_EQ(row.canary_p99, 0);

  // The canary is as fast as the control on either shape, of which it has more of the small one.
  add(200, false, 1e-3, 10);
  add(768, true, 3e-3, 20);
  row = comparison.Rows()[0];
  EXPECT_EQ(row.control_batches, 60);
  EXPECT_EQ(row.canary_batches, 120);
  EXPECT_NEAR(row.control_seconds, 0.16, 1e-9);
  EXPECT_NEAR(row.canary_seconds, 0.16, 1e-9);
  EXPECT_EQ(row.control_p50, row.canary_p50);
  EXPECT_EQ(row.control_p99, row.canary_p99);
  EXPECT_EQ(comparison.comparable(true), 120);

  // The newest count, of each side as many.
  add(200, true, 7e-3, 1000);
  add(200, false, 5e-3, 1000);
  row = comparison.Rows()[0];
  EXPECT_NEAR(row.canary_p50, 7e-3, 1e-8);
  EXPECT_NEAR(row.control_p50, 5e-3, 1e-8);
}

TEST(RowBuckets, CoverEveryRowCountOnce) {
  int next = 1;
  for (int rows = 1; rows < 5000; ++rows) {
    const RowBucket bucket = BucketOf(rows);
    EXPECT_LE(bucket.first, rows);
    EXPECT_GE(bucket.last, rows);
    if (rows == next) {
      EXPECT_EQ(bucket.first, next);
      next = bucket.last == kAnyRows ? 0 : bucket.last + 1;
    }
  }
}

}  // namespace
}  // namespace fulcrum
