// fulcrum verify, inspect and quantize on weight files and products written by other
// implementations, and on the same products spoiled.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "client/cli/payload.h"
#include "tests/client/support/run_app.h"
#include "tests/support/weight_files.h"

namespace fulcrum::cli {
namespace {

using testing::HasSubstr;

struct Case {
  const char* file;
  const char* tensor;  // and the stem of the .x.bf16 and .y.f64 files
  int64_t n;
};

constexpr Case kCases[] = {
    {"fp8/model.layers.0.mlp.gate_proj.safetensors", "fp8/model.layers.0.mlp.gate_proj", 384},
    {"fp8/model.layers.0.self_attn.k_proj.safetensors", "fp8/model.layers.0.self_attn.k_proj", 256},
    {"fp8/model.layers.1.mlp.down_proj.safetensors", "fp8/model.layers.1.mlp.down_proj", 200},
    {"q2_0/mainline.gguf", "q2_0/blk.0.attn_q.weight", 64},
    {"q2_0/mainline.gguf", "q2_0/blk.0.ffn_up.weight", 48},
    {"q2_0/mainline.gguf", "q2_0/blk.0.ffn_gate_shexp.weight", 33},
    {"q2_0/mainline.gguf", "q2_0/blk.1.ffn_down.weight", 5},
};

class VerifyFiles : public testing::TestWithParam<Case> {
 protected:
  static std::string Path(const std::string& name) { return FULCRUM_TEST_DATA "/" + name; }
  std::string Stem() const { return Path(GetParam().tensor); }

  AppRun Verify(const std::string& expect, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {
        "verify",
        "--file",
        Path(GetParam().file),
        "--tensor",
        std::filesystem::path(GetParam().tensor).filename().string(),
        "--activations",
        Stem() + ".x.bf16",
        "--expect",
        expect,
        "--threads",
        "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunFulcrum(arguments);
  }

  // The expected product with one change, as a file.
  template <typename Change>
  std::string Spoiled(Change change) const {
    std::string bytes = *ReadFile(Stem() + ".y.f64");
    change(bytes);
    const std::string path = dir_.At("spoiled.f64");
    EXPECT_TRUE(WriteFile(path, bytes).ok());
    return path;
  }

 private:
  const test::TempDir dir_;  // tests run at the same time in several processes
};

TEST_P(VerifyFiles, AcceptsTheReferenceInEveryPolicyAndType) {
  for (const char* policy : {"exact", "batch_invariant", "fastest"}) {
    for (const char* type : {"f32", "bf16"}) {
      const AppRun run =
          Verify(Stem() + ".y.f64", {"--policy", policy, "--output-type", type, "--json"});
      ASSERT_EQ(run.exit, 0) << policy << " " << type << "\n" << run.out << run.err;
      EXPECT_EQ(run.Json()["verdict"], "pass");
      EXPECT_EQ(run.Json()["class"], "exact");  // all levers closed
      EXPECT_EQ(run.Json()["oracle_mismatches"], 0);
      EXPECT_EQ(run.Json()["n"], GetParam().n);
      EXPECT_EQ(run.Json()["elements"], run.Json()["rows"].get<int64_t>() * GetParam().n);
    }
  }
}

TEST_P(VerifyFiles, AnOpenLeverRunsTheOtherClassWithinBudget) {
  const AppRun run =
      Verify(Stem() + ".y.f64", {"--policy", "batch_invariant", "--lever", "m16_tc=all:one_pass",
                                 "--output-type", "bf16", "--json"});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  const bool fp8 = std::string(GetParam().file).rfind("fp8", 0) == 0;
  EXPECT_EQ(run.Json()["class"], fp8 ? "blockfold" : "exact");
  EXPECT_EQ(run.Json()["oracle_mismatches"], 0);
}

TEST_P(VerifyFiles, RejectsOneWrongElement) {
  const std::string path = Spoiled([](std::string& bytes) {
    double value;
    std::memcpy(&value, bytes.data() + 8, 8);
    value += 1e3;
    std::memcpy(bytes.data() + 8, &value, 8);
  });
  const AppRun run = Verify(path);
  EXPECT_EQ(run.exit, 1) << run.out;
  EXPECT_THAT(run.out, HasSubstr("FAIL: outside the budget"));
}

TEST_P(VerifyFiles, RejectsShiftedColumns) {
  const std::string path = Spoiled(
      [](std::string& bytes) { std::rotate(bytes.begin(), bytes.begin() + 8, bytes.end()); });
  EXPECT_EQ(Verify(path).exit, 1);
}

TEST_P(VerifyFiles, SizesThatDoNotFitAreBadInput) {
  const std::string path = Spoiled([](std::string& bytes) { bytes.resize(bytes.size() - 8); });
  const AppRun run = Verify(path);
  EXPECT_EQ(run.exit, 2);
  EXPECT_THAT(run.err, HasSubstr("float64 values"));
  EXPECT_EQ(Verify("/nonexistent.f64").exit, 2);
  EXPECT_EQ(Verify(Stem() + ".y.f64", {"--lever", "m16_tc=sideways"}).exit, 2);
  EXPECT_EQ(Verify(Stem() + ".y.f64", {"--lever", "nonsense"}).exit, 2);
  EXPECT_EQ(Verify(Stem() + ".y.f64", {"--policy", "quickest"}).exit, 2);
}

// A value next to zero may be any number of representable values off; the printed one says how far
// the values that matter are.
TEST_P(VerifyFiles, TheDistanceIsOfLargeValues) {
  const AppRun run = Verify(Stem() + ".y.f64", {"--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_LT(run.Json()["max_ulp"].get<int64_t>(), 1 << 23) << run.out;
  const AppRun spoiled = Verify(Spoiled([](std::string& bytes) {
                                  const double tiny = -1e-30;
                                  std::memcpy(bytes.data(), &tiny, 8);
                                }),
                                {"--json"});
  EXPECT_LT(spoiled.Json()["max_ulp"].get<int64_t>(), 1 << 23) << spoiled.out;
}

INSTANTIATE_TEST_SUITE_P(Files, VerifyFiles, testing::ValuesIn(kCases), [](const auto& c) {
  std::string name = c.param.tensor;
  std::replace_if(
      name.begin(), name.end(), [](char x) { return !std::isalnum(x); }, '_');
  return name;
});

TEST(Verify, ActivationsMustBeWholeRowsOfAKnownType) {
  const std::string file = FULCRUM_TEST_DATA "/q2_0/mainline.gguf";
  const std::string expect = FULCRUM_TEST_DATA "/q2_0/blk.0.ffn_up.weight.y.f64";
  const test::TempDir dir;
  const std::string odd = dir.At("odd.bf16");
  ASSERT_TRUE(WriteFile(odd, std::string(10, 'x')).ok());
  for (const std::string& x : {odd, std::string("/nonexistent.bf16"), expect}) {
    const AppRun run = RunFulcrum({"verify", "--file", file, "--tensor", "blk.0.ffn_up.weight",
                                   "--activations", x, "--expect", expect});
    EXPECT_EQ(run.exit, 2) << x;
    EXPECT_THAT(run.err, HasSubstr(x));
  }
  const AppRun unknown = RunFulcrum({"verify", "--file", file, "--tensor", "no.such.tensor",
                                     "--activations", odd, "--expect", expect});
  EXPECT_EQ(unknown.exit, 2);
  EXPECT_THAT(unknown.err, HasSubstr("no.such.tensor"));
}

TEST(Inspect, NanIsFoundInScalesAndWithScanInWeights) {
  const test::TempDir dir;
  const auto file = [&](const char* name, const std::string& codes, float scale) {
    return dir.Write(name, test::SafetensorsBuilder()
                               .Add("model.layers.0.mlp.up_proj.weight", "F8_E4M3", {2, 4}, codes)
                               .Add("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", {1, 1},
                                    test::ArrayBytes(std::vector<float>{scale}))
                               .Build());
  };
  const std::string fine = file("fine.safetensors", "12345678", 1);
  const std::string code = file("code.safetensors", "1234567\x7f", 1);
  const std::string grid = file("grid.safetensors", "12345678", std::nanf(""));
  EXPECT_EQ(RunFulcrum({"inspect", fine, "--scan"}).exit, 0);
  const AppRun unread = RunFulcrum({"inspect", code});
  EXPECT_EQ(unread.exit, 0);
  EXPECT_THAT(unread.out, HasSubstr("--scan"));
  const AppRun read = RunFulcrum({"inspect", code, "--scan"});
  EXPECT_EQ(read.exit, 1);
  EXPECT_THAT(read.out, testing::AllOf(HasSubstr("row 1, column 3"), HasSubstr("allow_nan")));
  const AppRun scales = RunFulcrum({"inspect", grid, "--json"});
  EXPECT_EQ(scales.exit, 1);
  EXPECT_EQ(scales.Json()["importable"], false);
  EXPECT_THAT(scales.out, HasSubstr("allow_nan"));
}

TEST(Inspect, CountsUnusualScalesAndRefusesThoseThatOverflow) {
  const test::TempDir dir;
  const auto file = [&](const std::vector<float>& scales) {
    const auto count = static_cast<int64_t>(scales.size());
    return dir.Write("w.safetensors",
                     test::SafetensorsBuilder()
                         .Add("model.layers.0.mlp.up_proj.weight", "F8_E4M3", {1, 128 * count},
                              std::string(static_cast<size_t>(128 * count), '1'))
                         .Add("model.layers.0.mlp.up_proj.weight_scale_inv", "F32", {1, count},
                              test::ArrayBytes(scales))
                         .Build());
  };
  const std::string odd = file({0, -0.0f, -2, 1e-40f, 1});
  const AppRun text = RunFulcrum({"inspect", odd});
  EXPECT_EQ(text.exit, 0);
  EXPECT_THAT(text.out, HasSubstr("2 of 5 scales zero, 1 negative, 1 subnormal"));
  const auto tensors = RunFulcrum({"inspect", odd, "--json"}).Json()["tensors"];
  EXPECT_EQ(tensors[0]["verdict"], "served");
  EXPECT_EQ(tensors[0]["scales"]["count"], 5);
  EXPECT_EQ(tensors[0]["scales"]["zero"], 2);
  EXPECT_EQ(tensors[0]["scales"]["negative"], 1);
  EXPECT_EQ(tensors[0]["scales"]["subnormal"], 1);
  EXPECT_EQ(tensors[1]["verdict"], "skipped");
  EXPECT_TRUE(tensors[1]["scales"].is_null());

  const std::string huge = file({1, 1e38f});
  for (const auto& [arguments, exit] : std::vector<std::pair<std::vector<std::string>, int>>{
           {{"inspect", huge}, 1},
           {{"inspect", huge, "--scan"}, 1},
           {{"inspect", huge, "--allow-nan"}, 0},
           {{"inspect", huge, "--allow-nan", "--scan"}, 0}}) {
    const AppRun run = RunFulcrum(arguments);
    EXPECT_EQ(run.exit, exit) << run.out;
    EXPECT_THAT(run.out, testing::AllOf(HasSubstr("block [0, 1]"), HasSubstr("1e+38")));
  }
  const auto refused = RunFulcrum({"inspect", huge, "--json"}).Json();
  EXPECT_EQ(refused["importable"], false);
  EXPECT_EQ(refused["tensors"][0]["verdict"], "refused");
}

TEST(Inspect, SaysWhatANodeRefuses) {
  const test::TempDir dir;
  const std::string served = dir.Write(
      "w.safetensors", test::SafetensorsBuilder()
                           .Add("lm_head.weight", "BF16", {16, 16}, std::string(512, '\1'))
                           .Add("a b.weight", "BF16", {1, 1}, "12")
                           .Build());
  const AppRun fits = RunFulcrum({"inspect", served, "--memory-budget", "512"});
  EXPECT_EQ(fits.exit, 0) << fits.out;
  EXPECT_THAT(fits.out, testing::AllOf(HasSubstr("1 skipped: 1 no legal shard name"),
                                       HasSubstr("LoadShard")));
  const AppRun too_large = RunFulcrum({"inspect", served, "--memory-budget", "511"});
  EXPECT_EQ(too_large.exit, 1);
  EXPECT_THAT(too_large.out, HasSubstr("lm_head is the first without room"));
  EXPECT_EQ(RunFulcrum({"inspect", served, "--memory-budget", "0"}).exit, 2);
  const std::string norms =
      dir.Write("n.safetensors",
                test::SafetensorsBuilder().Add("model.norm.weight", "BF16", {1}, "12").Build());
  const AppRun nothing = RunFulcrum({"inspect", norms});
  EXPECT_EQ(nothing.exit, 1);
  EXPECT_THAT(nothing.out, HasSubstr("no tensor that can be served (1 skipped: 1 norm)"));
}

TEST(Quantize, ForceReplacesAnExistingFile) {
  const test::TempDir dir;
  const std::string input = dir.Write(
      "in.safetensors",
      test::SafetensorsBuilder().Add("a.weight", "BF16", {2, 64}, std::string(256, '\1')).Build());
  const std::string output = dir.Write("out.safetensors", "old");
  const AppRun refused = RunFulcrum({"quantize", input, output});
  EXPECT_EQ(refused.exit, 2);
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_EQ(*ReadFile(output), "old");
  EXPECT_EQ(RunFulcrum({"quantize", input, output, "--force"}).exit, 0);
  EXPECT_EQ(RunFulcrum({"inspect", output}).exit, 0);
}

TEST(Inspect, NamesEveryTensor) {
  const AppRun run = RunFulcrum({"inspect", FULCRUM_TEST_DATA "/q2_0/mainline.gguf", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(run.Json()["container"], "gguf");
  EXPECT_THAT(run.out, HasSubstr("blk.0.ffn_gate_shexp.weight"));
  EXPECT_THAT(
      RunFulcrum({"inspect", FULCRUM_TEST_DATA "/fp8/model.layers.0.mlp.gate_proj.safetensors"})
          .out,
      HasSubstr("gate_proj"));
  EXPECT_EQ(RunFulcrum({"inspect", "/nonexistent"}).exit, 2);
}

}  // namespace
}  // namespace fulcrum::cli
