// One question, one answer: for checkpoints made at random, inspect, a start (`--model`), its check
// beforehand (`--validate-config`), shards that are named explicitly (configured, LoadShard,
// ReplaceShard) and quantize agree on what is served, skipped and refused, and what they call
// served does load, and answers with finite numbers.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "kernels/backend_factory.h"
#include "kernels/weights/inspect.h"
#include "kernels/weights/quantize.h"
#include "service/shard_loader.h"
#include "service/shard_name.h"
#include "service/validate.h"
#include "tests/support/random_checkpoint.h"

namespace fulcrum::service {
namespace {

using test::Rng;
using test::TempDir;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kSeeds = 400;

std::unique_ptr<Backend> Cpu(int64_t budget) {
  auto backends = MakeBackends("cpu", {.cpu_threads = 1, .memory_budget_bytes = budget});
  return backends.ok() ? std::move(backends->front()) : nullptr;
}

const Arm* ExactArm(const Backend& backend, WeightFormat format, int m) {
  for (const Arm& arm : backend.ladder()) {
    if (arm.numerics == NumericsClass::kExact && arm.Serves(format, Step::kDecode, m)) return &arm;
  }
  return nullptr;
}

// Whether rows with a single 1, at every k in turn, give finite outputs: every weight is a finite
// number, by what the node computes with it.
bool AnswersFinite(Backend& backend, const Shard& shard) {
  const Arm* const arm = ExactArm(backend, shard.format(), kMaxDecodeRows);
  if (arm == nullptr) return false;
  const auto n = static_cast<size_t>(shard.n()), k = static_cast<size_t>(shard.k());
  const std::unique_ptr<LaunchSlot> slot = backend.NewSlot();
  std::vector<float> outputs(kMaxDecodeRows * n);
  const size_t output_bytes[] = {outputs.size() * sizeof(float)};
  if (!slot->Reserve(kMaxDecodeRows * k * 2, output_bytes).ok()) return false;
  const LaunchTarget target = {.arm = arm, .weight = shard.weight.get()};
  for (size_t first = 0; first < k; first += kMaxDecodeRows) {
    std::fill_n(slot->activations(), kMaxDecodeRows * k, 0);
    for (size_t row = 0; row < kMaxDecodeRows && first + row < k; ++row) {
      slot->activations()[row * k + first + row] = F32ToBf16(1);
    }
    const auto times = backend.Run(
        *slot, {.targets = {&target, 1}, .m = kMaxDecodeRows, .output_type = DType::kF32});
    if (!times.ok()) return false;
    std::memcpy(outputs.data(), slot->output(0), output_bytes[0]);
    if (!std::all_of(outputs.begin(), outputs.end(), [](float v) { return std::isfinite(v); })) {
      return false;
    }
  }
  return true;
}

// What happened over all seeds, so that a generator that makes only one kind is seen.
struct Tally {
  int unreadable = 0, refused = 0, served = 0, shards = 0, skipped = 0, no_room = 0;
  int not_finite = 0, quantized = 0;
};

class Agreement {
 public:
  Agreement(uint64_t seed, Tally& tally)
      : rng_(~seed),
        made_(test::CheckpointMaker(seed, dir_).Make()),
        backend_(Cpu(0)),
        tally_(tally) {}

  void Check() {
    SCOPED_TRACE(made_.story + " -> " + made_.path);
    for (const bool allow_nan : {false, true}) CheckImport(allow_nan);
    CheckNamed();
    CheckBudget();
    CheckQuantize();
  }

 private:
  Config Configured(bool allow_nan) const {
    Config config;
    config.backend = "cpu";
    config.cpu_threads = 1;
    config.models = {{.model = "m", .source = CheckpointPath{made_.path}, .allow_nan = allow_nan}};
    return config;
  }

  void CheckImport(bool allow_nan) {
    SCOPED_TRACE(allow_nan ? "allow_nan" : "finite");
    const auto headers = Inspect(made_.path, Scan::kScales, allow_nan);
    const Config config = Configured(allow_nan);
    LoadPlan plan = OpenModels(config);
    PlaceModels({backend_.get()}, plan);
    EXPECT_EQ(ValidateStart(config, {}).message(), plan.status().message());
    const absl::Status refusal = headers.ok() ? headers->refusal : headers.status();
    ASSERT_EQ(refusal.ok(), plan.problems.empty()) << refusal << "\n" << plan.status();
    tally_.unreadable += !headers.ok();
    tally_.refused += headers.ok() && !refusal.ok();
    if (!refusal.ok()) {
      EXPECT_EQ(plan.problems[0], absl::StrCat("models/m: ", refusal.message()));
      return;
    }
    ++tally_.served;
    std::set<std::string> planned, expected;
    for (const PlannedShard& shard : plan.shards) {
      EXPECT_TRUE(CheckShardName(shard.name).ok()) << CheckShardName(shard.name);
      EXPECT_TRUE(planned.insert(shard.name).second) << shard.name;
    }
    std::vector<std::pair<std::string, std::string>> skipped, expected_skipped;
    for (const LoadPlan::Skips& skips : plan.skips) {
      for (const SkippedTensor& t : skips.tensors) skipped.emplace_back(t.tensor, t.reason);
    }
    for (const InspectedTensor& t : headers->tensors) {
      if (t.fate == Fate::kServed) expected.insert(ShardName("m", t.shard));
      if (t.fate == Fate::kSkipped) expected_skipped.emplace_back(t.name, t.why);
    }
    EXPECT_EQ(planned, expected);
    EXPECT_EQ(skipped, expected_skipped);
    tally_.shards += static_cast<int>(planned.size());
    tally_.skipped += static_cast<int>(skipped.size());
    CheckLoad(std::move(plan), allow_nan);
  }

  void CheckLoad(LoadPlan plan, bool allow_nan) {
    const auto rows = Inspect(made_.path, Scan::kWeights, allow_nan);
    ASSERT_TRUE(rows.ok()) << rows.status();
    ShardStore store({backend_.get()}, nullptr);
    ShardLoader loader(store, {});
    const std::atomic<bool> stop = false;
    const LoadSummary summary = loader.LoadAll(std::move(plan), nullptr, stop);
    EXPECT_EQ(summary.failed.empty(), rows->refusal.ok()) << rows->refusal;
    std::set<std::string> failed, refused;
    for (const LoadSummary::Failed& f : summary.failed) {
      failed.insert(f.name);
      EXPECT_TRUE(absl::IsInvalidArgument(f.status)) << f.status;
    }
    for (const InspectedTensor& t : rows->tensors) {
      if (t.fate == Fate::kRefused) refused.insert(ShardName("m", t.shard));
    }
    EXPECT_EQ(failed, refused);
    tally_.not_finite += static_cast<int>(failed.size());
    if (allow_nan) return;
    for (const auto& shard : store.Serving()) {
      EXPECT_TRUE(AnswersFinite(*backend_, *shard)) << shard->name;
    }
  }

  // Every tensor by its name, as a configuration and as callers give it.
  void CheckNamed() {
    const auto headers = Inspect(made_.path);
    const auto inspection = Inspect(made_.path, Scan::kWeights);
    if (!inspection.ok()) return;
    ShardStore store({backend_.get()}, nullptr);
    ShardLoader loader(store, {dir_.path()});
    LoadRequest held;
    held.name = "models/m/shards/held";
    held.source = std::make_shared<test::MemoryWeight>(
        test::RandomBf16(2, 2, test::WeightKind::kGaussian, 1));
    ASSERT_TRUE(store.Load(held).ok());
    for (size_t i = 0; i < inspection->tensors.size(); ++i) {
      const InspectedTensor& tensor = inspection->tensors[i];
      SCOPED_TRACE(tensor.name);
      Config config;
      config.models = {{.model = "m",
                        .source = std::vector<ExplicitShardConfig>{{.name = "s",
                                                                    .path = made_.path,
                                                                    .tensor = tensor.name,
                                                                    .device = "",
                                                                    .expect_hash = ""}}}};
      const LoadPlan plan = OpenModels(config);
      const auto asked = loader.Open({.path = made_.path, .tensor = tensor.name});
      absl::Status loaded = asked.status();
      // What headers refuse is refused before anything is loaded.
      EXPECT_FALSE(asked.ok() && headers->tensors[i].fate == Fate::kRefused);
      EXPECT_EQ(loaded.ok(), plan.problems.empty()) << loaded << plan.status();
      if (!loaded.ok()) {
        ASSERT_EQ(plan.problems.size(), 1u);
        EXPECT_EQ(plan.problems[0], absl::StrCat("models/m/shards/s: ", loaded.message()));
      } else {
        LoadRequest request;
        request.name = absl::StrCat("models/m/shards/", i);
        request.source = *asked;
        loaded = store.Load(request).status();
        request.name = held.name;
        EXPECT_EQ(loaded.code(), store.Replace(request).status().code());
      }
      EXPECT_TRUE(loaded.ok() || tensor.fate != Fate::kServed) << loaded;
      EXPECT_TRUE(!loaded.ok() || tensor.fate != Fate::kRefused) << tensor.why;
    }
    EXPECT_TRUE(store.Find(held.name).ok());  // whatever it was to be replaced with
  }

  // A device with less than all shards need.
  void CheckBudget() {
    const auto inspection = Inspect(made_.path);
    if (!inspection.ok() || !inspection->refusal.ok()) return;
    int64_t needed = 0;
    for (const NamedWeight& w : inspection->served) {
      needed += backend_->ResidentBytes(w.source->spec());
    }
    for (const int64_t budget : {needed, needed - 1}) {
      if (budget < 1) continue;
      const std::unique_ptr<Backend> small = Cpu(budget);
      LoadPlan plan = OpenModels(Configured(false));
      PlaceModels({small.get()}, plan);
      ASSERT_EQ(plan.problems.empty(), budget == needed) << plan.status();
      if (budget < needed) {
        EXPECT_THAT(plan.problems[0], testing::AllOf(HasSubstr(absl::StrCat(needed, " bytes")),
                                                     HasSubstr(absl::StrCat(budget))));
        ++tally_.no_room;
      }
    }
  }

  void CheckQuantize() {
    const auto input = Inspect(made_.path, Scan::kWeights);
    const WeightFormat target =
        rng_.Below(2) == 0 ? WeightFormat::kFp8Block128 : WeightFormat::kQ2_0;
    const std::string output = dir_.At("quantized");
    const auto report = Quantize({.input = made_.path, .output = output, .target = target});
    if (!input.ok() || input->container != "safetensors") {
      EXPECT_FALSE(report.ok());
      return;
    }
    const auto headers = Inspect(made_.path);
    // What is refused is refused alike; where merely nothing is served, converting may help.
    const std::string refusal(headers->refusal.message());
    if (!refusal.empty() && refusal.find("no tensor that can be served") == refusal.npos) {
      EXPECT_EQ(report.status(), headers->refusal);
      return;
    }
    if (!report.ok()) {
      EXPECT_THAT(std::string(report.status().message()),
                  AnyOf(HasSubstr("has no quantized form"), HasSubstr("would be infinite"),
                        HasSubstr("GGUF readers take at most 63")));
      return;
    }
    ++tally_.quantized;
    const auto made = Inspect(output, Scan::kWeights);
    ASSERT_TRUE(made.ok()) << made.status();
    std::map<std::string, InspectedTensor> rows;
    for (const InspectedTensor& t : made->tensors) rows[t.name] = t;
    for (const std::string& name : report->converted) {
      EXPECT_EQ(rows.at(name).fate, Fate::kServed) << name << ": " << rows.at(name).why;
      EXPECT_EQ(rows.at(name).format, std::string(Name(target)));
    }
    const std::set<std::string> converted(report->converted.begin(), report->converted.end());
    for (const InspectedTensor& t : input->tensors) {
      if (converted.contains(t.name) || !rows.contains(t.name)) continue;
      // GGUF may lack the other tensor that asks for the name.
      if (target == WeightFormat::kQ2_0 && t.why.starts_with("ambiguous")) continue;
      EXPECT_EQ(rows.at(t.name).fate, t.fate) << t.name << ": " << rows.at(t.name).why;
    }
  }

  const TempDir dir_;
  Rng rng_;
  const test::RandomCheckpoint made_;
  const std::unique_ptr<Backend> backend_;
  Tally& tally_;
};

TEST(LoaderAgreement, EveryWayToACheckpointGivesOneAnswer) {
  Tally tally;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Agreement(seed, tally).Check();
    if (testing::Test::HasFailure()) break;  // one checkpoint is enough to read
  }
  if (testing::Test::HasFailure()) return;
  // Each kind of outcome is there in numbers, or the test says little.
  for (const auto& [what, count] : std::map<std::string, int>{{"unreadable", tally.unreadable},
                                                              {"refused", tally.refused},
                                                              {"served", tally.served},
                                                              {"shards", tally.shards},
                                                              {"skipped", tally.skipped},
                                                              {"no room", tally.no_room},
                                                              {"not finite", tally.not_finite},
                                                              {"quantized", tally.quantized}}) {
    EXPECT_GE(count, 20) << what;
    RecordProperty(what, count);
  }
}

}  // namespace
}  // namespace fulcrum::service
