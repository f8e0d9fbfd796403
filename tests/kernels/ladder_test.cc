// The choice of an arm: totality, the class rules, and the whole ladder as text, on a GPU-shaped
// table that needs no GPU.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/ladder/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/support/cuda_like_ladder.h"

namespace fulcrum {
namespace {

using test::kAllCaps;
using test::kCudaLikeLadder;

const std::vector<std::string>& LeverTexts() {
  static const auto* texts = [] {
    auto* t = new std::vector<std::string>;
    for (const char* m16 : {"off", "all:one_pass", "all:m16", "all:m16_n64", "attn_o:m16"}) {
      for (const char* w8a8 : {"off", "all:on", "all:library"}) {
        for (const char* warp : {"off", "auto", "on"}) {
          for (const char* imma : {"off", "on"}) {
            t->push_back(absl::StrFormat("%s|%s|%s|%s", m16, w8a8, warp, imma));
          }
        }
      }
    }
    return t;
  }();
  return *texts;
}

LeverSet LeversOf(const std::string& text) {
  LeverSet levers;
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == '|') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  EXPECT_TRUE(levers.Set("m16_tc", parts[0]).ok());
  EXPECT_TRUE(levers.Set("w8a8_prefill", parts[1]).ok());
  EXPECT_TRUE(levers.Set("q2_warp_rows", parts[2]).ok());
  EXPECT_TRUE(levers.Set("q2_imma", parts[3]).ok());
  return levers;
}

std::vector<int> RowsOf(Step step) {
  std::vector<int> rows(32);
  std::iota(rows.begin(), rows.end(), 1);
  if (step == Step::kPrefill) rows.insert(rows.end(), {33, 63, 64, 65, 127, 512, 1000, 2048, 4096});
  return rows;
}

struct Case {
  LadderQuery query;
  std::string levers;
};

std::string Text(const LadderQuery& q) {
  return absl::StrFormat("%s %s %s %s caps %x", Name(q.format), Name(q.family), Name(q.step),
                         Name(q.policy), q.device_caps);
}

// Every format, family, step, policy and lever choice, on devices from none to all capabilities.
template <class Visit>
void ForAll(Visit visit) {
  for (WeightFormat format : kAllWeightFormats) {
    for (Family family : kAllFamilies) {
      for (Step step : kAllSteps) {
        for (Policy policy : kAllPolicies) {
          uint32_t caps = 0;
          do {
            for (const std::string& levers : LeverTexts()) {
              visit(LadderQuery{format, family, step, policy, caps}, LeversOf(levers), levers);
            }
            caps = (caps - kAllCaps) & kAllCaps;  // the next set of these bits
          } while (caps != 0);
        }
      }
    }
  }
}

// One EXPECT per case would be slow at this number of cases; the first failures are told.
class Failures {
 public:
  template <class Tell>
  void Check(bool ok, Tell tell) {
    ++checks_;
    if (!ok && ++failures_ <= 5) ADD_FAILURE() << tell();
  }
  ~Failures() {
    EXPECT_EQ(failures_, 0) << "of " << checks_;
    EXPECT_GT(checks_, 0);
  }

 private:
  int64_t checks_ = 0, failures_ = 0;
};

TEST(Ladder, EveryProblemHasAnArmOfAnAllowedClassThatTheDeviceCanRun) {
  Failures failures;
  ForAll([&](const LadderQuery& query, const LeverSet& levers, const std::string& text) {
    const ClassSet classes = AllowedClasses(kCudaLikeLadder, query, levers);
    for (int m : RowsOf(query.step)) {
      const Arm* arm = PickArm(kCudaLikeLadder, query, classes, levers, m);
      const bool ok = arm != nullptr && arm->Serves(query.format, query.step, m) &&
                      classes.has(arm->numerics) && arm->gate.Open(levers, query.family) &&
                      (arm->needs & ~query.device_caps) == 0;
      failures.Check(ok, [&] { return absl::StrFormat("%s, %s, M %d", Text(query), text, m); });
    }
  });
}

TEST(Ladder, ExactPolicyAndClosedLeversAreExactEverywhere) {
  Failures failures;
  ForAll([&](LadderQuery query, const LeverSet& levers, const std::string& text) {
    const bool closed = text.starts_with("off|off");
    if (!closed && query.policy != Policy::kExact) return;
    ClassSet exact;
    exact.add(NumericsClass::kExact);
    const ClassSet classes = AllowedClasses(kCudaLikeLadder, query, levers);
    failures.Check(classes == exact, [&] { return Text(query) + ", " + text; });
  });
}

TEST(Ladder, BatchInvariantUsesOneClassAtEveryRowCountAndNeverW8A8) {
  Failures failures;
  ForAll([&](const LadderQuery& query, const LeverSet& levers, const std::string& text) {
    if (query.policy != Policy::kBatchInvariant) return;
    const ClassSet classes = AllowedClasses(kCudaLikeLadder, query, levers);
    std::set<NumericsClass> seen;
    for (int m : RowsOf(query.step)) {
      seen.insert(PickArm(kCudaLikeLadder, query, classes, levers, m)->numerics);
    }
    failures.Check(seen.size() == 1 && !seen.contains(NumericsClass::kW8A8),
                   [&] { return Text(query) + ", " + text; });
  });
}

TEST(Ladder, AClassWithAHoleIsNotBatchInvariant) {
  // The seed's row, serving from 5 rows up only: FASTEST may use it, BATCH_INVARIANT may not.
  const Arm ladder[] = {
      {.name = "from_five",
       .format = test::kFp8,
       .numerics = NumericsClass::kMma,
       .m_min = 5,
       .gate = test::M16TcAny()},
      {.name = "exact", .format = test::kFp8, .gate = {}},
  };
  LeverSet levers;
  ASSERT_TRUE(levers.Set("m16_tc", "all:m16").ok());
  LadderQuery query{.policy = Policy::kBatchInvariant};
  EXPECT_FALSE(AllowedClasses(ladder, query, levers).has(NumericsClass::kMma));
  EXPECT_EQ(PickArm(ladder, query, AllowedClasses(ladder, query, levers), levers, 8)->name,
            "exact");
  query.policy = Policy::kFastest;
  EXPECT_EQ(PickArm(ladder, query, AllowedClasses(ladder, query, levers), levers, 8)->name,
            "from_five");
  EXPECT_EQ(PickArm(ladder, query, AllowedClasses(ladder, query, levers), levers, 4)->name,
            "exact");
}

TEST(Ladder, TwoArmsOfOneClassMayCoverTheStepTogether) {
  const Arm ladder[] = {
      {.name = "wide",
       .format = test::kFp8,
       .numerics = NumericsClass::kMma,
       .m_min = 17,
       .gate = test::M16TcAny()},
      {.name = "narrow",
       .format = test::kFp8,
       .numerics = NumericsClass::kMma,
       .m_max = 16,
       .gate = test::M16TcAny()},
      {.name = "exact", .format = test::kFp8, .gate = {}},
  };
  LeverSet levers;
  ASSERT_TRUE(levers.Set("m16_tc", "all").ok());
  const LadderQuery query{.policy = Policy::kBatchInvariant};
  const ClassSet classes = AllowedClasses(ladder, query, levers);
  EXPECT_EQ(PickArm(ladder, query, classes, levers, 16)->name, "narrow");
  EXPECT_EQ(PickArm(ladder, query, classes, levers, 17)->name, "wide");
}

TEST(Ladder, ExplainAgreesWithPickAndNamesEveryDecision) {
  Failures failures;
  ForAll([&](const LadderQuery& query, const LeverSet& levers, const std::string& text) {
    if (query.family != Family::kAttnO && query.family != Family::kFfnDown) return;
    const ClassSet classes = AllowedClasses(kCudaLikeLadder, query, levers);
    for (int m : {1, 4, 5, 16, 17, 32}) {
      const Arm* picked = PickArm(kCudaLikeLadder, query, classes, levers, m);
      int runs = 0;
      bool right = true;
      for (const RungVerdict& rung : Explain(kCudaLikeLadder, query, levers, m)) {
        right &= rung.arm->format == query.format;
        right &= (rung.verdict == Decline::kRuns) == (rung.arm == picked);
        if (rung.arm < picked) right &= rung.verdict != Decline::kBelow;
        runs += rung.verdict == Decline::kRuns;
      }
      failures.Check(right && runs == 1,
                     [&] { return absl::StrFormat("%s, %s, M %d", Text(query), text, m); });
    }
  });
}

TEST(Ladder, ACapabilityThatIsMissingIsVisible) {
  LeverSet levers;
  ASSERT_TRUE(levers.Set("m16_tc", "attn_o:one_pass").ok());
  LadderQuery query{.family = Family::kAttnO, .device_caps = kCapMma};
  const Arm* asked = AskedButDeclined(kCudaLikeLadder, query, levers, 8);
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->name, "w8a16_gemm_m32");
  for (const RungVerdict& rung : Explain(kCudaLikeLadder, query, levers, 8)) {
    if (rung.arm == asked) {
      EXPECT_EQ(Name(rung.verdict), "capability");
    }
  }
  // Not asked for: by the policy, by the family, by the device's own ability.
  query.policy = Policy::kExact;
  EXPECT_EQ(AskedButDeclined(kCudaLikeLadder, query, levers, 8), nullptr);
  query.policy = Policy::kBatchInvariant;
  query.family = Family::kFfnDown;
  EXPECT_EQ(AskedButDeclined(kCudaLikeLadder, query, levers, 8), nullptr);
  query.family = Family::kAttnO;
  query.device_caps = kAllCaps;
  EXPECT_EQ(AskedButDeclined(kCudaLikeLadder, query, levers, 8), nullptr);
}

TEST(Ladder, PiecesSumToTheRowsAndFitOneLaunch) {
  for (int per_launch : {1, 4, 8, 16, 32, 100}) {
    const Arm arm{.name = "arm", .rows_per_launch = per_launch, .gate = {}};
    for (int m = 1; m <= 130; ++m) {
      const std::vector<int> pieces = Pieces(arm, m);
      EXPECT_EQ(std::accumulate(pieces.begin(), pieces.end(), 0), m);
      EXPECT_EQ(static_cast<int>(pieces.size()), (m + per_launch - 1) / per_launch);
      EXPECT_LE(*std::max_element(pieces.begin(), pieces.end()), per_launch);
      EXPECT_GT(*std::min_element(pieces.begin(), pieces.end()), 0);
    }
  }
  const Arm sixteen{.name = "sixteen", .rows_per_launch = 16, .gate = {}};
  EXPECT_EQ(Pieces(sixteen, 17), (std::vector<int>{16, 1}));
  EXPECT_TRUE(Pieces(sixteen, 0).empty());
}

// "1 arm; 2-4 arm; ..." over the rows of a step.
std::string Rungs(const LadderQuery& query, const LeverSet& levers) {
  const ClassSet classes = AllowedClasses(kCudaLikeLadder, query, levers);
  const std::vector<int> rows = RowsOf(query.step);
  std::string text;
  for (size_t i = 0; i < rows.size();) {
    const Arm* arm = PickArm(kCudaLikeLadder, query, classes, levers, rows[i]);
    size_t j = i;
    while (j + 1 < rows.size() &&
           PickArm(kCudaLikeLadder, query, classes, levers, rows[j + 1]) == arm) {
      ++j;
    }
    const std::string range =
        i == j ? absl::StrFormat("%d", rows[i]) : absl::StrFormat("%d-%d", rows[i], rows[j]);
    absl::StrAppendFormat(&text, "%s%s %s", text.empty() ? "" : "; ", range, arm->name);
    i = j + 1;
  }
  return text;
}

std::string Golden(const char* m16, const char* w8a8, uint32_t caps) {
  LeverSet levers;
  EXPECT_TRUE(levers.Set("m16_tc", m16).ok());
  EXPECT_TRUE(levers.Set("w8a8_prefill", w8a8).ok());
  std::string text = "\n";
  for (WeightFormat format : kAllWeightFormats) {
    for (Step step : kAllSteps) {
      for (Policy policy : kAllPolicies) {
        const LadderQuery query{format, Family::kFfnDown, step, policy, caps};
        absl::StrAppendFormat(&text, "%s %s %s: %s\n", Name(format), Name(step), Name(policy),
                              Rungs(query, levers));
      }
    }
  }
  return text;
}

// The whole ladder as text. It changes only on purpose.
TEST(Ladder, GoldenClosed) {
  EXPECT_EQ(Golden("off", "off", kAllCaps), R"(
fp8 decode exact: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemv_batch16
fp8 decode batch_invariant: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemv_batch16
fp8 decode fastest: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemv_batch16
fp8 prefill exact: 1-4096 w8a16_gemv_pieces
fp8 prefill batch_invariant: 1-4096 w8a16_gemv_pieces
fp8 prefill fastest: 1-4096 w8a16_gemv_pieces
q2_0 decode exact: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 decode batch_invariant: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 decode fastest: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 prefill exact: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
q2_0 prefill batch_invariant: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
q2_0 prefill fastest: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
bf16 decode exact: 1-32 dense_gemv_bf16
bf16 decode batch_invariant: 1-32 dense_gemv_bf16
bf16 decode fastest: 1-32 dense_gemv_bf16
bf16 prefill exact: 1-4096 dense_gemv_bf16
bf16 prefill batch_invariant: 1-4096 dense_gemv_bf16
bf16 prefill fastest: 1-4096 dense_gemv_bf16
)");
}
TEST(Ladder, GoldenOnePassAndW8A8) {
  EXPECT_EQ(Golden("all:one_pass", "all", kAllCaps), R"(
fp8 decode exact: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemv_batch16
fp8 decode batch_invariant: 1-32 w8a16_gemm_m32
fp8 decode fastest: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemm_m32
fp8 prefill exact: 1-4096 w8a16_gemv_pieces
fp8 prefill batch_invariant: 1-4096 w8a16_gemm_tiled
fp8 prefill fastest: 1-4096 w8a8_blockscaled
q2_0 decode exact: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 decode batch_invariant: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 decode fastest: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 prefill exact: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
q2_0 prefill batch_invariant: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
q2_0 prefill fastest: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
bf16 decode exact: 1-32 dense_gemv_bf16
bf16 decode batch_invariant: 1-32 dense_gemm_m16_bf16
bf16 decode fastest: 1-4 dense_gemv_bf16; 5-32 dense_gemm_m16_bf16
bf16 prefill exact: 1-4096 dense_gemv_bf16
bf16 prefill batch_invariant: 1-4096 dense_gemm_tiled_bf16
bf16 prefill fastest: 1-4096 dense_gemm_tiled_bf16
)");
}
TEST(Ladder, GoldenSeedTier) {
  EXPECT_EQ(Golden("ffn_down:m16", "off", kAllCaps), R"(
fp8 decode exact: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemv_batch16
fp8 decode batch_invariant: 1-32 w8a16_gemm_m16
fp8 decode fastest: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemm_m16
fp8 prefill exact: 1-4096 w8a16_gemv_pieces
fp8 prefill batch_invariant: 1-4096 w8a16_gemm_tiled
fp8 prefill fastest: 1-4096 w8a16_gemm_tiled
q2_0 decode exact: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 decode batch_invariant: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 decode fastest: 1-4 q2_0_warp_rows; 5-32 q2_0_imma
q2_0 prefill exact: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
q2_0 prefill batch_invariant: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
q2_0 prefill fastest: 1-4 q2_0_mmvq; 5-4096 q2_0_imma
bf16 decode exact: 1-32 dense_gemv_bf16
bf16 decode batch_invariant: 1-32 dense_gemm_m16_bf16
bf16 decode fastest: 1-4 dense_gemv_bf16; 5-32 dense_gemm_m16_bf16
bf16 prefill exact: 1-4096 dense_gemv_bf16
bf16 prefill batch_invariant: 1-4096 dense_gemm_tiled_bf16
bf16 prefill fastest: 1-4096 dense_gemm_tiled_bf16
)");
}
TEST(Ladder, GoldenNoCapabilities) {
  EXPECT_EQ(Golden("all:m16_n64", "all", 0), R"(
fp8 decode exact: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemv_batch16
fp8 decode batch_invariant: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemv_batch16
fp8 decode fastest: 1 w8a16_gemv; 2-4 w8a16_gemv_batch4; 5-32 w8a16_gemv_batch16
fp8 prefill exact: 1-4096 w8a16_gemv_pieces
fp8 prefill batch_invariant: 1-4096 w8a16_gemv_pieces
fp8 prefill fastest: 1-4096 w8a16_gemv_pieces
q2_0 decode exact: 1-4 q2_0_warp_rows; 5-32 q2_0_mmvq
q2_0 decode batch_invariant: 1-4 q2_0_warp_rows; 5-32 q2_0_mmvq
q2_0 decode fastest: 1-4 q2_0_warp_rows; 5-32 q2_0_mmvq
q2_0 prefill exact: 1-4096 q2_0_mmvq
q2_0 prefill batch_invariant: 1-4096 q2_0_mmvq
q2_0 prefill fastest: 1-4096 q2_0_mmvq
bf16 decode exact: 1-32 dense_gemv_bf16
bf16 decode batch_invariant: 1-32 dense_gemv_bf16
bf16 decode fastest: 1-32 dense_gemv_bf16
bf16 prefill exact: 1-4096 dense_gemv_bf16
bf16 prefill batch_invariant: 1-4096 dense_gemv_bf16
bf16 prefill fastest: 1-4096 dense_gemv_bf16
)");
}

}  // namespace
}  // namespace fulcrum
