// The audit as a guard, over the real backends: faults planted in what is resident, in an arm and
// in what a launch was prepared for. Each must be found within a number of audited outputs that
// follows from the share of outputs it makes wrong, raise an incident, leave a bundle that `fulcrum
// replay` runs again, revert a canary, and stop the device where that is configured. That nothing
// is found where there is no fault is no_false_alarm_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/ladder/ladder.h"
#include "kernels/weights/synthetic.h"
#include "tests/audit/support/audited_node.h"
#include "tests/audit/support/stale_backend.h"
#include "tests/audit/support/wrong_share.h"
#include "tests/client/support/run_app.h"
#include "tests/support/planted_backend.h"

namespace fulcrum {
namespace {

using test::AuditedNode;
using test::AuditRecorder;
using test::Difference;
using test::Differing;
using test::FoundWithin;
using test::RowPool;
using ::testing::HasSubstr;

constexpr int64_t kN = 1024, kK = 5120;  // a key or value projection of a large model
constexpr int kCallRows[] = {32, 1, 7, 16, 3, 19};

std::shared_ptr<const WeightSource> Synthetic(WeightFormat format, uint64_t seed) {
  auto made = SyntheticWeight({.name = "w", .format = format, .n = kN, .k = kK}, seed);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// What the live levers run for a full batch of the shard.
const Arm* ArmOf(AuditedNode& node, const Shard& shard) {
  const LadderQuery query = {
      .format = shard.format(), .family = shard.family, .device_caps = node.backend->device().caps};
  const LeverSet& levers = node.levers.Snapshot()->levers;
  const ClassSet classes = AllowedClasses(node.backend->ladder(), query, levers);
  return PickArm(node.backend->ladder(), query, classes, levers, kMaxDecodeRows);
}

class AuditFaults : public ::testing::Test {
 protected:
  // Calls until wrong bits were found, or should have been.
  AuditRecorder::Totals ServeUntilFound(AuditedNode& node, std::shared_ptr<const Shard> shard,
                                        int64_t bound) {
    AuditRecorder::Totals totals;
    for (size_t i = 0; totals.at_first_wrong == 0 && totals.audited <= bound; ++i) {
      node.Run(shard, pool_.Next(kCallRows[i % std::size(kCallRows)]));
      totals = node.recorder.totals();
    }
    std::printf("%s: first wrong output is number %ld of those audited, expected within %ld\n",
                node.backend->device().id.c_str(), static_cast<long>(totals.at_first_wrong),
                static_cast<long>(bound));
    EXPECT_GT(totals.at_first_wrong, 0);
    EXPECT_LE(totals.at_first_wrong, bound);
    EXPECT_EQ(totals.failed, 0);
    return totals;
  }
  // A few hundred right outputs first: what is found later was planted.
  void ExpectQuiet(AuditedNode& node, std::shared_ptr<const Shard> shard) {
    for (const int rows : kCallRows) node.Run(shard, pool_.Next(rows));
    const AuditRecorder::Totals totals = node.recorder.totals();
    EXPECT_GT(totals.audited, 0);
    EXPECT_EQ(totals.at_first_wrong, 0);
    EXPECT_EQ(totals.failed, 0);
    EXPECT_TRUE(totals.incidents.empty());
    EXPECT_TRUE(node.health.CheckDevice(node.backend.get()).ok());
    node.recorder.Restart();
  }
  void ExpectIncident(AuditedNode& node, const Shard& shard, const Incident& incident,
                      const std::set<int64_t>& columns) {
    EXPECT_EQ(incident.what, "audit");
    EXPECT_EQ(incident.shard, shard.name);
    EXPECT_EQ(incident.shard_hash, shard.hash);
    EXPECT_EQ(incident.device, node.backend->device().id);
    EXPECT_TRUE(columns.contains(incident.column)) << incident.column;
    EXPECT_NE(incident.expected_bits, incident.found_bits);
    EXPECT_THAT(test::ReadFile(node.log_path), HasSubstr("incident: wrong bits"));
    EXPECT_THAT(node.metrics.Text(), Not(HasSubstr("fulcrum_incidents_total{what=\"audit\"} 0")));
  }
  // The faults are this device's at that moment: the same arm on weights loaded anew is right, and
  // what was served was not.
  void ExpectReplayConfirms(AuditedNode& node, const AuditRecorder::Totals& totals) {
    ASSERT_FALSE(totals.bundles.empty());
    const std::string backend(node.backend->name());
    const cli::AppRun run =
        cli::RunFulcrum({"replay", totals.bundles.front(), "--backend", backend, "--json"});
    EXPECT_EQ(run.exit, 0) << run.err;
    const auto json = run.Json();
    ASSERT_TRUE(json.is_object()) << run.out << run.err;
    EXPECT_EQ(json["verdict"], "right this time") << run.out;
    EXPECT_EQ(json["arm"], totals.incidents.front().arm);
    EXPECT_EQ(json["served"]["wrong_bits"], 1) << run.out;
    EXPECT_EQ(json["again"]["wrong_bits"], 0) << run.out;
  }
  static void ExpectStopped(AuditedNode& node) {
    EXPECT_TRUE(absl::IsUnavailable(node.health.CheckDevice(node.backend.get())));
    EXPECT_FALSE(node.health.serving());
  }

  RowPool pool_{kK, 7};
};

struct FlipCase {
  std::string_view backend;
  WeightFormat format;
  std::string_view m16_tc;  // value of the lever
  bool scale;               // else a weight's code
};
std::ostream& operator<<(std::ostream& out, const FlipCase& c) {
  return out << c.backend << "_" << Name(c.format) << (c.scale ? "_scale" : "_code")
             << (c.m16_tc == "off" ? "" : "_open");
}

class AuditFindsAFlippedBit : public AuditFaults, public ::testing::WithParamInterface<FlipCase> {
 protected:
  // Flips the first bit, from the byte on, that shows in at least half of the rows of so many
  // columns.
  Difference Plant(AuditedNode& node, const Shard& shard, int64_t byte, int step, size_t columns) {
    constexpr int kBytes = 16, kSomeRows = kMaxDecodeRows;
    const Arm& arm = *ArmOf(node, shard);
    Backend& backend = *node.backend;
    const auto right = pool_.Product(backend, arm, *shard.weight);
    for (int i = 0; i < 8 * kBytes; ++i) {
      const int64_t at = byte + i / 8 * step;
      EXPECT_TRUE(shard.weight->FlipBit(at, i % 8).ok());
      const auto some = pool_.Product(backend, arm, *shard.weight, kSomeRows);
      const auto half = static_cast<int64_t>(columns) * kSomeRows / 2;
      if (const Difference seen = Differing(right, some, kN);
          seen.columns.size() == columns && seen.outputs >= half) {
        std::printf("%s, %s: bit %d of resident byte %ld of %ld\n", backend.device().id.c_str(),
                    std::string(arm.name).c_str(), i % 8, static_cast<long>(at),
                    static_cast<long>(shard.weight->resident_bytes()));
        return Differing(right, pool_.Product(backend, arm, *shard.weight), kN);
      }
      EXPECT_TRUE(shard.weight->FlipBit(at, i % 8).ok());
    }
    ADD_FAILURE() << "no bit changes " << columns << " columns";
    return {};
  }
};

TEST_P(AuditFindsAFlippedBit, WithinItsBound) {
  const FlipCase& param = GetParam();
  test::BackendUnderTest under_test = test::OpenBackend(param.backend);
  FULCRUM_NEED_BACKEND(under_test);
  AuditedNode node(std::move(under_test.backend),
                   {.levers = {{"m16_tc", std::string(param.m16_tc)}}, .stop_device = true});
  const auto shard = node.Load("s", Synthetic(param.format, 3));
  ASSERT_NE(shard, nullptr);
  ExpectQuiet(node, shard);

  // Codes first, scales last (layout.h of either backend); q2_0's scales are of one row each.
  const int64_t bytes = shard->weight->resident_bytes();
  const Difference fault = param.scale ? Plant(node, *shard, bytes - 1, -1, kFp8Block)
                                       : Plant(node, *shard, bytes / 2, 1, 1);
  ASSERT_GT(fault.share, 0);
  const auto totals = ServeUntilFound(node, shard, FoundWithin(fault.share));
  ASSERT_FALSE(totals.incidents.empty());
  ExpectIncident(node, *shard, totals.incidents.front(), fault.columns);
  ExpectReplayConfirms(node, totals);
  ExpectStopped(node);
}

std::vector<FlipCase> FlipCases() {
  std::vector<FlipCase> cases;
  for (const std::string_view backend : CompiledBackends()) {
    for (const WeightFormat format : kAllWeightFormats) {
      for (const char* const m16_tc : {"off", "all:one_pass"}) {
        if (format == WeightFormat::kQ2_0 && m16_tc != std::string_view("off")) continue;
        cases.push_back({backend, format, m16_tc, false});
      }
    }
    cases.push_back({backend, WeightFormat::kFp8Block128, "off", true});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Backends, AuditFindsAFlippedBit, ::testing::ValuesIn(FlipCases()),
                         ::testing::PrintToStringParamName());

class AuditOnBackend : public AuditFaults,
                       public ::testing::WithParamInterface<std::string_view> {};

// The last bit of one column: nothing but a comparison of bits can see it.
TEST_P(AuditOnBackend, AWrongArmRevertsItsCanaryAtOnce) {
  test::BackendUnderTest under_test = test::OpenBackend(GetParam());
  FULCRUM_NEED_BACKEND(under_test);
  const auto plant = std::make_shared<test::PlantedArm>();
  AuditedNode node(std::make_unique<test::PlantedBackend>(plant, std::move(under_test.backend)),
                   {.levers = {{"shadow_rate", "0"}}, .stop_device = false});
  const auto shard = node.Load("s", Synthetic(WeightFormat::kFp8Block128, 3));
  ASSERT_NE(shard, nullptr);
  ExpectQuiet(node, shard);
  const auto on_canary = [](const test::TestCall& call) {
    return call.provenance.arms[0]->gate.lever == Lever::kM16Tc;
  };
  const auto client = [](int i) { return "client-" + std::to_string(i % 40); };

  CanarySpec spec{.changes = {{"m16_tc", "all:one_pass"}}, .share = 0.5};
  ASSERT_TRUE(node.control.Start(spec, 0, false).ok());
  // Right as yet: it goes on, and its outputs are audited too.
  node.recorder.Restart(/*gated=*/true);
  for (int i = 0; i < 40; ++i) node.Run(shard, pool_.Next(1 + i % 4), client(i));
  EXPECT_GT(node.recorder.totals().audited, 0);
  EXPECT_EQ(node.recorder.totals().at_first_wrong, 0);
  EXPECT_EQ(node.control.Last()->state, CanaryState::kRunning) << node.control.Last()->evidence;

  node.recorder.Restart(/*gated=*/true);
  plant->one_bit = true;
  const int64_t bound = FoundWithin(1.0 / kN);
  AuditRecorder::Totals totals;
  for (int i = 0; totals.incidents.empty() && totals.audited <= bound; ++i) {
    node.Run(shard, pool_.Next(1 + i % 4), client(i));
    totals = node.recorder.totals();
  }
  // Of all clients, from here on: none.
  const int64_t served = plant->wrong_rows;
  for (int i = 0; i < 80; ++i) {
    EXPECT_FALSE(on_canary(*node.Run(shard, pool_.Next(1), client(i)))) << client(i);
  }
  EXPECT_EQ(plant->wrong_rows, served);
  std::printf("%s: first wrong output is number %ld of the canary's, expected within %ld\n",
              node.backend->device().id.c_str(), static_cast<long>(totals.at_first_wrong),
              static_cast<long>(bound));
  EXPECT_GT(totals.at_first_wrong, 0);
  EXPECT_LE(totals.at_first_wrong, bound);
  ASSERT_FALSE(totals.incidents.empty());
  ExpectIncident(node, *shard, totals.incidents.front(), {0});
  EXPECT_EQ(totals.incidents.front().expected_bits ^ totals.incidents.front().found_bits, 1u);
  ExpectReplayConfirms(node, totals);

  // The event and the journal are the control's thread's.
  const absl::Time limit = absl::Now() + absl::Minutes(2);
  while (node.control.Last()->ended == absl::InfiniteFuture() && absl::Now() < limit) {
    std::this_thread::yield();
  }
  const CanaryReport report = *node.control.Last();
  EXPECT_EQ(report.state, CanaryState::kReverted);
  EXPECT_THAT(report.evidence, HasSubstr("wrong bits found by audit"));
  EXPECT_EQ(node.levers.History().back().cause, LeverCause::kRevert);
  EXPECT_EQ(node.levers.Snapshot()->levers.Print(Lever::kM16Tc), "off");
  // It was not configured to stop.
  EXPECT_TRUE(node.health.CheckDevice(node.backend.get()).ok());
}

// before: the weight that the stale launches were prepared for.
class AuditOfStaleLaunches : public AuditOnBackend {
 protected:
  void ExpectFound(std::shared_ptr<const WeightSource> before, std::string_view m16_tc) {
    test::BackendUnderTest under_test = test::OpenBackend(GetParam());
    FULCRUM_NEED_BACKEND(under_test);
    const auto plan = std::make_shared<test::StalePlan>();
    AuditedNode node(test::MakeStaleBackend(std::move(under_test.backend), plan),
                     {.levers = {{"m16_tc", std::string(m16_tc)}}, .stop_device = true});
    const auto old = node.Load("old", std::move(before));
    const auto shard = node.Load("new", Synthetic(WeightFormat::kFp8Block128, 3));
    ASSERT_NE(old, nullptr);
    ASSERT_NE(shard, nullptr);
    ExpectQuiet(node, shard);
    ExpectQuiet(node, old);

    const Arm& arm = *ArmOf(node, *shard);
    const Difference fault = Differing(pool_.Product(*node.backend, arm, *shard->weight),
                                       pool_.Product(*node.backend, arm, *old->weight), kN);
    ASSERT_GT(fault.share, 0);
    plan->of = shard->weight.get();
    plan->before = old->weight.get();
    plan->armed = true;
    const auto totals = ServeUntilFound(node, shard, FoundWithin(fault.share));
    EXPECT_GT(plan->launches, 0);
    ASSERT_FALSE(totals.incidents.empty());
    ExpectIncident(node, *shard, totals.incidents.front(), fault.columns);
    ExpectReplayConfirms(node, totals);
    ExpectStopped(node);
    // Only what is stale is wrong.
    node.recorder.Restart();
    for (const int rows : kCallRows) node.Run(old, pool_.Next(rows));
    EXPECT_GT(node.recorder.totals().audited, 0);
    EXPECT_EQ(node.recorder.totals().at_first_wrong, 0);
  }
};

TEST_P(AuditOfStaleLaunches, OfAnotherWeight) {
  ExpectFound(Synthetic(WeightFormat::kFp8Block128, 4), "off");
}

TEST_P(AuditOfStaleLaunches, OfAVersionThatDiffersInOneRow) {
  const auto now = Synthetic(WeightFormat::kFp8Block128, 3);
  const auto scales = now->scales();
  auto before = std::make_shared<test::MemoryWeight>(
      now->spec(), test::ReadAll(*now), std::vector<float>(scales.begin(), scales.end()));
  constexpr int64_t kRow = 555;
  for (int64_t k = 0; k < kK; ++k) {
    before->mutable_rows()[static_cast<size_t>(kRow * kK + k)] ^= std::byte{0x80};  // the sign
  }
  ExpectFound(std::move(before), "all:one_pass");
}

std::string BackendName(const ::testing::TestParamInfo<std::string_view>& info) {
  return std::string(info.param);
}
INSTANTIATE_TEST_SUITE_P(Backends, AuditOnBackend, ::testing::ValuesIn(CompiledBackends()),
                         BackendName);
INSTANTIATE_TEST_SUITE_P(Backends, AuditOfStaleLaunches, ::testing::ValuesIn(CompiledBackends()),
                         BackendName);

}  // namespace
}  // namespace fulcrum
