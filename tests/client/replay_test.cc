// fulcrum replay on bundles of right and wrong outputs.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/formats/bf16.h"
#include "kernels/numerics/bundle.h"
#include "kernels/numerics/oracle.h"
#include "kernels/weights/synthetic.h"
#include "tests/client/support/run_app.h"
#include "tests/support/random_weights.h"
#include "tests/support/weight_files.h"

namespace fulcrum::cli {
namespace {

using ::testing::HasSubstr;

class ReplayTest : public testing::Test {
 protected:
  // As a node would have written it: columns [128, 256) of a blockfold product.
  numerics::Bundle Written() {
    const auto weight = *SyntheticWeight(
        {.name = "w", .format = WeightFormat::kFp8Block128, .n = 300, .k = 256}, 3);
    numerics::Bundle bundle;
    bundle.found_by = "shadow";
    bundle.detail = "too far off";
    bundle.shard = "models/m/shards/s";
    bundle.origin = weight->origin();
    bundle.tensor = "w";
    EXPECT_TRUE(ContentHash(*weight, &bundle.shard_hash).ok());
    bundle.n = 300;
    bundle.k = 256;
    bundle.arm = "cpu_w8a16_blockfold";
    bundle.numerics = NumericsClass::kBlockfold;
    bundle.rows = 3;
    bundle.column = 128;
    bundle.columns = 128;
    bundle.activations = test::RandomActivations(3, 256, test::ActivationKind::kGaussian, 4);
    std::vector<float> values(3 * 128);
    EXPECT_TRUE(numerics::ReferenceProduct(NumericsClass::kBlockfold, *weight, 128, 128,
                                           bundle.activations, 3, values)
                    .ok());
    for (const float value : values) {
      const uint16_t bits = F32ToBf16(value);
      const auto* const bytes = reinterpret_cast<const std::byte*>(&bits);
      bundle.outputs.insert(bundle.outputs.end(), bytes, bytes + 2);
    }
    return bundle;
  }
  AppRun Replay(const numerics::Bundle& bundle, std::vector<std::string> more = {}) {
    const std::string path = dir_.At(std::to_string(++files_));
    EXPECT_TRUE(numerics::WriteBundle(bundle, path).ok());
    std::vector<std::string> arguments = {"replay", path, "--json", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunFulcrum(arguments);
  }
  const test::TempDir dir_;
  int files_ = 0;
};

TEST_F(ReplayTest, AFaultThatDoesNotShowAgainIsToldFromOneThatWasNone) {
  const AppRun fine = Replay(Written());
  ASSERT_EQ(fine.exit, 0) << fine.err;
  EXPECT_EQ(fine.Json()["verdict"], "right then and now");
  EXPECT_EQ(fine.Json()["again"]["differ_from_served"], 0);

  numerics::Bundle wrong = Written();
  wrong.outputs[1] ^= std::byte{2};
  const AppRun once = Replay(wrong);
  ASSERT_EQ(once.exit, 0) << once.err;
  EXPECT_EQ(once.Json()["verdict"], "right this time");
  EXPECT_EQ(once.Json()["served"]["wrong_bits"], 1);
  EXPECT_EQ(once.Json()["again"]["wrong_bits"], 0);
  EXPECT_EQ(once.Json()["again"]["differ_from_served"], 1);
  const AppRun text = RunFulcrum({"replay", dir_.At("2")});
  EXPECT_THAT(text.out, HasSubstr("1 of 384 outputs have not the bits of its class"));
  EXPECT_THAT(text.out, HasSubstr("right this time"));
}

TEST_F(ReplayTest, AnArmThatIsWrongHereTooIsExitOne) {
  // The exact arm cannot have the bits of blockfold: it stands for an arm that is wrong everywhere.
  numerics::Bundle bundle = Written();
  bundle.arm = "cpu_w8a16_exact";
  bundle.outputs[1] ^= std::byte{2};
  bundle.output_type = DType::kF32;
  bundle.outputs.resize(3 * 128 * 4);
  const AppRun run = Replay(bundle);
  EXPECT_EQ(run.exit, 1) << run.err;
  EXPECT_EQ(run.Json()["verdict"], "wrong again");
}

TEST_F(ReplayTest, AnotherWeightOrDeviceIsToldAsSuch) {
  numerics::Bundle other = Written();
  other.shard_hash = std::string(64, '0');
  const AppRun hash = Replay(other);
  EXPECT_EQ(hash.exit, 2);
  EXPECT_THAT(hash.err, HasSubstr("has the content hash"));
  numerics::Bundle gpu = Written();
  gpu.arm = "w8a16_gemm_m32";
  const AppRun not_run = Replay(gpu);
  EXPECT_EQ(not_run.Json()["verdict"], "not run");
  EXPECT_EQ(not_run.exit, 3);
  numerics::Bundle forged = Written();
  forged.detail = "fine\nright then and now";
  Replay(forged);
  EXPECT_THAT(RunFulcrum({"replay", dir_.At(std::to_string(files_))}).out,
              HasSubstr("fine\\nright then and now"));
  EXPECT_EQ(RunFulcrum({"replay", dir_.At("none")}).exit, 2);
}

}  // namespace
}  // namespace fulcrum::cli
