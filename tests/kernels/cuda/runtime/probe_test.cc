// Whether this machine's device follows the emulator, over a large set, on each instruction; and
// that the comparison finds other models different, or it would prove nothing.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/probe.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cuda/host/device_query.h"
#include "kernels/cuda/host/stream.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/tensor_core.h"
#include "kernels/numerics/tensor_core_model.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

constexpr int kTiles = 2048;  // 2^20 outputs
constexpr int64_t kOutputs =
    int64_t{kTiles} * numerics::StepSet::kRows * numerics::StepSet::kColumns;

uint32_t OneMoreBit(const uint16_t* a, const uint16_t* b, uint32_t c) {
  return numerics::tensor_core_model::Step(a, b, c, numerics::tensor_core_model::kFractionBits + 1);
}
uint32_t PlainFloat(const uint16_t* a, const uint16_t* b, uint32_t c) {
  auto sum = std::bit_cast<float>(c);
  for (int i = 0; i < 16; ++i) sum = std::fma(Bf16ToF32(a[i]), Bf16ToF32(b[i]), sum);
  return std::bit_cast<uint32_t>(CanonicalF32(sum));
}

// The first output that is not the emulator's, in full: what a model that is wrong somewhere rare
// is mended from.
std::string FirstDifference(const numerics::StepSet& set, const std::vector<uint32_t>& results) {
  using numerics::StepSet;
  for (size_t i = 0; i < results.size(); ++i) {
    const size_t row = i / StepSet::kColumns;
    const size_t column = row / StepSet::kRows * StepSet::kColumns + i % StepSet::kColumns;
    const uint16_t* const a = set.a.data() + row * StepSet::kK;
    const uint16_t* const b = set.b.data() + column * StepSet::kK;
    const uint32_t middle = numerics::TensorCoreStep(a, b, set.c[i]);
    const uint32_t sum = numerics::TensorCoreStep(a + 16, b + 16, middle);
    if (sum == results[i] || (sum | results[i]) << 1 == 0) continue;
    std::string text =
        absl::StrFormat("output %d: c %08x, emulator %08x then %08x, device %08x; a b", i, set.c[i],
                        middle, sum, results[i]);
    for (int k = 0; k < StepSet::kK; ++k) absl::StrAppendFormat(&text, " %04x %04x", a[k], b[k]);
    return text;
  }
  return "no difference";
}

class Probe : public testing::TestWithParam<MmaInstruction> {};
INSTANTIATE_TEST_SUITE_P(, Probe, testing::Values(MmaInstruction::kMmaSync, MmaInstruction::kWgmma),
                         [](const auto& param) {
                           return param.param == MmaInstruction::kWgmma ? "wgmma" : "mma_sync";
                         });

TEST_P(Probe, AMillionOutputsHaveTheEmulatorsBitsAndNoOtherModels) {
  const test::BackendUnderTest under_test = Open();
  FULCRUM_NEED_BACKEND(under_test);
  const DeviceCap needs = GetParam() == MmaInstruction::kWgmma ? kCapSm90a : kCapMma;
  const DeviceInfo& device = under_test.backend->device();
  if ((device.caps & needs) == 0) GTEST_SKIP() << device.description << " has no such instruction";
  const numerics::StepSet set = numerics::MakeStepSet(kTiles, 11);
  const absl::StatusOr<Stream> stream = MakeStream(0, Priority::kLaunches);
  ASSERT_TRUE(stream.ok()) << stream.status();
  const absl::StatusOr<std::vector<uint32_t>> results = RunSteps(0, stream->get(), GetParam(), set);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(static_cast<int64_t>(results->size()), kOutputs);
  EXPECT_EQ(numerics::CountAgreeing(set, *results, numerics::TensorCoreStep), kOutputs)
      << FirstDifference(set, *results);
  EXPECT_LT(numerics::CountAgreeing(set, *results, OneMoreBit), kOutputs - kOutputs / 50);
  EXPECT_LT(numerics::CountAgreeing(set, *results, PlainFloat), kOutputs - kOutputs / 50);
}

// A device with tensor cores that the build's code does not use there would serve empty kernels.
TEST(CompiledCaps, AreThoseOfTheDeviceThatThisBuildHasCodeFor) {
  const test::BackendUnderTest under_test = Open();
  FULCRUM_NEED_BACKEND(under_test);
  const absl::StatusOr<Stream> stream = MakeStream(0, Priority::kLaunches);
  ASSERT_TRUE(stream.ok()) << stream.status();
  const absl::StatusOr<uint32_t> compiled = CompiledCaps(0, stream->get());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const DeviceInfo& device = under_test.backend->device();
  // Where arms were measured to be faster is no question of code.
  EXPECT_EQ(device.caps & ~(*compiled | kCapBlockScaled | kCapFasterArms), 0u);
  // Every preset has code for what a device of sm_80 and sm_90 can do.
  const absl::StatusOr<std::vector<DeviceInfo>> queried = QueryDevices();
  ASSERT_TRUE(queried.ok() && !queried->empty()) << queried.status();
  const uint32_t of_hardware = queried->front().caps;
  EXPECT_EQ(*compiled & of_hardware, of_hardware & ~kCapBlockScaled) << device.description;
}

// What a node shows of the device, from the small set that it runs at start.
TEST(ProbeAtStart, IsPartOfTheDeviceAndFindsWhatTheLargeSetFinds) {
  const test::BackendUnderTest under_test = Open();
  FULCRUM_NEED_BACKEND(under_test);
  const DeviceInfo& device = under_test.backend->device();
  const MmaProbe& probe = device.mma_probe;
  if ((device.caps & kCapMma) == 0) {
    EXPECT_EQ(probe.model(), MmaModel::kNotMeasured);
    return;
  }
  EXPECT_GE(probe.outputs, (device.caps & kCapSm90a) != 0 ? 2 * 4096 : 4096);
  EXPECT_EQ(probe.model(), MmaModel::kFollowed)
      << device.description << ": " << probe.agreeing << " of " << probe.outputs;
}

}  // namespace
}  // namespace fulcrum::cuda
