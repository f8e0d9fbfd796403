// Lever text: parsing, printing, refusals, and the environment's spellings.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/ladder/levers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/ladder/lever_aliases.h"

namespace fulcrum {
namespace {

using ::testing::HasSubstr;

TEST(Levers, DefaultsCloseWhatChangesBits) {
  const LeverSet levers;
  for (const LeverInfo& info : LeverTable()) {
    EXPECT_FALSE(info.name.empty());
    EXPECT_FALSE(info.doc.empty());
    EXPECT_EQ(FindLever(info.name), &info);
    if (info.changes_bits) {
      EXPECT_EQ(levers.Print(info.lever), "off") << info.name;
    }
  }
  EXPECT_EQ(levers.Print(Lever::kQ2WarpRows), "auto");
  EXPECT_EQ(levers.Print(Lever::kQ2Imma), "on");
  EXPECT_EQ(levers.Print(Lever::kCoalesceWindow), "0");
  EXPECT_EQ(levers.Print(Lever::kMaxBatchRows), "32");
  EXPECT_EQ(levers.Print(Lever::kAuditRate), "0.01");
  EXPECT_EQ(FindLever("always_open"), nullptr);
}

TEST(Levers, FamilyMapsParseAndPrintCanonically) {
  const std::map<std::string, std::string> cases = {
      {"off", "off"},
      {"all", "all:one_pass"},
      {"all:m16", "all:m16"},
      {"attn_qkv", "attn_qkv:one_pass"},
      {"ffn_down:m16_n64,attn_o", "attn_o:one_pass,ffn_down:m16_n64"},
      {" attn_o : m16 , lm_head ", "attn_o:m16,lm_head:one_pass"},
      {"all:off", "off"},
      {"attn_o:off", "off"},
      {"all:m16,lm_head:off",
       "attn_qkv:m16,attn_o:m16,ssm_in:m16,ssm_out:m16,ffn_gate_up:m16,ffn_down:m16,"
       "shared_expert:m16,other:m16"},
  };
  for (const auto& [text, printed] : cases) {
    LeverSet levers;
    ASSERT_TRUE(levers.Set("m16_tc", text).ok()) << text;
    EXPECT_EQ(levers.Print(Lever::kM16Tc), printed) << text;
  }
}

TEST(Levers, ParsePrintParseIsStable) {
  const std::map<std::string, std::vector<std::string>> values = {
      {"m16_tc", {"off", "all", "all:m16_n64", "attn_o:m16,ffn_down", "all:m16,other:off"}},
      {"w8a8_prefill", {"off", "all", "lm_head", "all:library", "ffn_down:library,attn_o"}},
      {"q2_warp_rows", {"auto", "off", "on"}},
      {"q2_imma", {"off", "on"}},
      {"coalesce_window_us", {"0", "1", "100000", "1e3"}},
      {"max_batch_rows", {"1", "32", "17"}},
      {"shadow_rate", {"0", "0.5"}},
      {"audit_rate", {"0", "-0", "1", "0.1", "1e-5", "0.30000000000000004", "0x1p-3"}},
  };
  size_t levers_seen = 0;
  for (const auto& [name, texts] : values) {
    ++levers_seen;
    for (const std::string& text : texts) {
      LeverSet once, twice;
      ASSERT_TRUE(once.Set(name, text).ok()) << name << " " << text;
      const Lever lever = FindLever(name)->lever;
      ASSERT_TRUE(twice.Set(name, once.Print(lever)).ok()) << once.Print(lever);
      EXPECT_EQ(once, twice) << name << " " << text;
      EXPECT_EQ(once.Print(lever), twice.Print(lever));
    }
  }
  EXPECT_EQ(levers_seen, kLeverCount);
}

TEST(Levers, WrongValuesAreRefusedByNameAndChangeNothing) {
  struct Bad {
    const char *lever, *value, *says;
  };
  const Bad cases[] = {
      {"m16tc", "off", "m16_tc"},
      {"m16_tc", "", "family"},
      {"m16_tc", "attn", "'attn'"},
      {"m16_tc", "attn_o:fast", "'fast'"},
      {"m16_tc", "attn_o:", "one_pass"},
      {"m16_tc", "attn_o,", "''"},
      {"m16_tc", "attn_o,attn_o:m16", "twice"},
      {"m16_tc", "attn_o,all", "first"},
      {"m16_tc", "on", "'on'"},
      {"w8a8_prefill", "library", "family"},
      {"w8a8_prefill", "all:cublaslt", "library"},
      {"q2_imma", "auto", "'auto'"},
      {"q2_warp_rows", "On", "'On'"},
      {"coalesce_window_us", "-1", "0 to 100000"},
      {"coalesce_window_us", "100001", "0 to 100000"},
      {"coalesce_window_us", "1.5", "whole"},
      {"coalesce_window_us", "5us", "'5us'"},
      {"max_batch_rows", "0", "1 to 32"},
      {"max_batch_rows", "33", "1 to 32"},
      {"max_batch_rows", "inf", "1 to 32"},
      {"audit_rate", "nan", "0 to 1"},
      {"audit_rate", "1.0001", "0 to 1"},
      {"audit_rate", "", "0 to 1"},
  };
  for (const Bad& bad : cases) {
    LeverSet levers;
    ASSERT_TRUE(levers.Set("m16_tc", "lm_head:m16").ok());
    const LeverSet before = levers;
    const absl::Status status = levers.Set(bad.lever, bad.value);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad.lever << "=" << bad.value << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.says));
    EXPECT_EQ(levers, before);
  }
}

TEST(Levers, GatesOpenForTheirChoicesAndFamilies) {
  const Gate gate{Lever::kM16Tc, 1u << kM16TcM16 | 1u << kM16TcM16N64};
  LeverSet levers;
  EXPECT_TRUE(Gate{}.Open(levers, Family::kOther));
  EXPECT_FALSE(gate.Open(levers, Family::kAttnO));
  ASSERT_TRUE(levers.Set("m16_tc", "attn_o:m16_n64,ffn_down:one_pass").ok());
  EXPECT_TRUE(gate.Open(levers, Family::kAttnO));
  EXPECT_FALSE(gate.Open(levers, Family::kFfnDown));
  EXPECT_FALSE(gate.Open(levers, Family::kLmHead));
}

TEST(Levers, AChoiceForWhereItIsFasterOpensOnlyThere) {
  const Gate gate{Lever::kQ2WarpRows, 1u << kQ2WarpRowsAuto | 1u << kQ2WarpRowsOn,
                  1u << kQ2WarpRowsAuto};
  LeverSet levers;
  ASSERT_EQ(levers.Print(Lever::kQ2WarpRows), "auto");
  EXPECT_TRUE(gate.Open(levers, Family::kOther, /*is_faster=*/true));
  EXPECT_FALSE(gate.Open(levers, Family::kOther, /*is_faster=*/false));
  ASSERT_TRUE(levers.Set("q2_warp_rows", "on").ok());
  EXPECT_TRUE(gate.Open(levers, Family::kOther, /*is_faster=*/false));
  ASSERT_TRUE(levers.Set("q2_warp_rows", "off").ok());
  EXPECT_FALSE(gate.Open(levers, Family::kOther, /*is_faster=*/true));
}

std::string Translate(const std::map<std::string, std::string>& variables) {
  const auto levers = TranslateAliases(variables);
  if (!levers.ok()) return "error: " + std::string(levers.status().message());
  std::string text;
  for (const AliasedLever& lever : *levers) {
    text += lever.lever + "=" + lever.value + " (" + lever.variable + ")\n";
  }
  return text;
}

TEST(LeverAliases, SeedSpellings) {
  EXPECT_EQ(Translate({}), "");
  EXPECT_EQ(Translate({{"FULCRUM_CONFIG", "x"}, {"PATH", "/"}}), "");
  EXPECT_EQ(Translate({{"FULCRUM_M16_TC", "1"}}),
            "m16_tc=attn_qkv:m16,attn_o:m16,ffn_gate_up:m16,ffn_down:m16 (FULCRUM_M16_TC)\n");
  EXPECT_EQ(Translate({{"FULCRUM_ATTN_M16_TC", ""}}),
            "m16_tc=attn_qkv:m16,attn_o:m16 (FULCRUM_ATTN_M16_TC)\n");
  EXPECT_EQ(Translate({{"FULCRUM_FFN_M16_TC", "yes"}, {"FULCRUM_FFN_M16_TC_NTILE", "64"}}),
            "m16_tc=ffn_gate_up:m16_n64,ffn_down:m16_n64 "
            "(FULCRUM_FFN_M16_TC,FULCRUM_FFN_M16_TC_NTILE)\n");
  // The family's own variable beats the umbrella, either way.
  EXPECT_EQ(Translate({{"FULCRUM_M16_TC", "1"}, {"FULCRUM_ATTN_M16_TC", "0"}}),
            "m16_tc=ffn_gate_up:m16,ffn_down:m16 (FULCRUM_ATTN_M16_TC,FULCRUM_M16_TC)\n");
  EXPECT_EQ(Translate({{"FULCRUM_M16_TC", "off"}, {"FULCRUM_FFN_M16_TC", "1"}}),
            "m16_tc=ffn_gate_up:m16,ffn_down:m16 (FULCRUM_M16_TC,FULCRUM_FFN_M16_TC)\n");
  EXPECT_EQ(Translate({{"FULCRUM_Q2_WARP", "1"}}), "q2_warp_rows=on (FULCRUM_Q2_WARP)\n");
  for (const char* off : {"0", "false", "off", "no", " No ", "FALSE"}) {
    EXPECT_EQ(Translate({{"FULCRUM_M16_TC", off}}), "m16_tc=off (FULCRUM_M16_TC)\n") << off;
    EXPECT_EQ(Translate({{"FULCRUM_Q2_WARP", off}}), "q2_warp_rows=off (FULCRUM_Q2_WARP)\n");
  }
  // Only exactly "64" narrows the tile, and a tile alone arms nothing.
  for (const char* tile : {"", "32", " 64", "064", "6 4"}) {
    EXPECT_EQ(Translate({{"FULCRUM_FFN_M16_TC", "1"}, {"FULCRUM_FFN_M16_TC_NTILE", tile}}),
              "m16_tc=ffn_gate_up:m16,ffn_down:m16 (FULCRUM_FFN_M16_TC)\n");
  }
  EXPECT_EQ(Translate({{"FULCRUM_FFN_M16_TC_NTILE", "64"}}), "");
}

TEST(LeverAliases, GeneralFormAndConflicts) {
  EXPECT_EQ(Translate({{"FULCRUM_LEVER_AUDIT_RATE", "0.5"},
                       {"FULCRUM_LEVER_M16_TC", "lm_head"},
                       {"FULCRUM_Q2_WARP", "0"}}),
            "m16_tc=lm_head:one_pass (FULCRUM_LEVER_M16_TC)\n"
            "q2_warp_rows=off (FULCRUM_Q2_WARP)\n"
            "audit_rate=0.5 (FULCRUM_LEVER_AUDIT_RATE)\n");
  EXPECT_THAT(Translate({{"FULCRUM_LEVER_M16TC", "off"}}), HasSubstr("FULCRUM_LEVER_M16TC"));
  EXPECT_THAT(Translate({{"FULCRUM_LEVER_", "off"}}), HasSubstr("error: FULCRUM_LEVER_:"));
  EXPECT_THAT(Translate({{"FULCRUM_LEVER_MAX_BATCH_ROWS", "64"}}), HasSubstr("1 to 32"));
  EXPECT_THAT(Translate({{"FULCRUM_LEVER_M16_TC", "off"}, {"FULCRUM_ATTN_M16_TC", "1"}}),
              HasSubstr("FULCRUM_LEVER_M16_TC and FULCRUM_ATTN_M16_TC"));
  EXPECT_THAT(Translate({{"FULCRUM_LEVER_Q2_IMMA", "on"}, {"FULCRUM_LEVER_q2_imma", "off"}}),
              HasSubstr("both set lever q2_imma"));
}

}  // namespace
}  // namespace fulcrum
