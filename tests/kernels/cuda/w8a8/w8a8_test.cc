// Class w8a8 apart from its arm: what the quantiser writes, and a comparison that sees activation
// scales in the wrong layout, which run at full speed and look almost right. Whether the arm is
// right at every shape is arm_contract_test.cc's.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/w8a8/w8a8.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/layout/layout.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/numerics/budget.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

constexpr int kM = 512;
constexpr int64_t kN = 700, kK = 2560;  // no tile divides N
constexpr int kBlocks = kK / kBlockK;

// Activations on the device, quantised there; a product from them with any scales.
class W8A8Test : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda_ = test::OpenBackend("cuda", {.w8a8 = true});
    if (cuda_.backend == nullptr) return;
    able_ = (cuda_.backend->device().caps & kCapBlockScaled) != 0;
    if (!able_) return;
    auto weight = cuda_.backend->Upload(source_);
    ASSERT_TRUE(weight.ok()) << weight.status();
    weight_ = *weight;
    x_ = Gaussian(kM, kK);
    ASSERT_TRUE(Grow(rows_, 0, x_.size() * 2).ok());
    ASSERT_TRUE(Grow(codes_, 0, x_.size()).ok());
    ASSERT_TRUE(Grow(scales_, 0, kM * kBlocks * 4).ok());
    ASSERT_TRUE(Grow(output_, 0, kM * kN * 4).ok());
  }

  QuantisedRows Quantised() const {
    return {.codes = codes_.data(),
            .scales = reinterpret_cast<float*>(scales_.data()),
            .scale_pitch = kM};
  }
  void Quantise() {
    ASSERT_EQ(cudaMemcpy(rows_.data(), x_.data(), x_.size() * 2, cudaMemcpyDefault), cudaSuccess);
    ASSERT_EQ(QuantiseRows(reinterpret_cast<const uint16_t*>(rows_.data()), kK, kM, kBlocks,
                           Quantised(), nullptr),
              cudaSuccess);
    host_codes_.resize(kM * kK);
    host_scales_.resize(kM * kBlocks);
    ASSERT_EQ(cudaMemcpy(host_codes_.data(), codes_.data(), host_codes_.size(), cudaMemcpyDefault),
              cudaSuccess);
    ASSERT_EQ(cudaMemcpy(host_scales_.data(), scales_.data(), scales_.size(), cudaMemcpyDefault),
              cudaSuccess);
  }
  std::vector<float> Product(const std::vector<float>& scales, int tile = kFastestTile) {
    EXPECT_EQ(cudaMemcpy(scales_.data(), scales.data(), scales_.size(), cudaMemcpyDefault),
              cudaSuccess);
    EXPECT_EQ(cudaMemset(output_.data(), 0xff, output_.size()), cudaSuccess);
    absl::StatusOr<CudaContext> context = ContextOf(0, cuda_.backend->device());
    EXPECT_TRUE(context.ok()) << context.status();
    EXPECT_EQ(MultiplyCodes({.weight = weight_.get(),
                             .output = output_.data(),
                             .output_type = DType::kF32,
                             .output_pitch = kN,
                             .m = kM,
                             .context = &*context},
                            Quantised(), tile),
              cudaSuccess);
    std::vector<float> values(kM * kN);
    EXPECT_EQ(cudaMemcpy(values.data(), output_.data(), values.size() * 4, cudaMemcpyDefault),
              cudaSuccess);
    return values;
  }
  numerics::Verdict Check(const std::vector<float>& values) const {
    std::vector<double> exact(kM * kN);
    EXPECT_TRUE(numerics::Float64Product(source_, 0, kN, x_, kM, exact).ok());
    return numerics::CheckW8A8Budget(exact, values, kM, kN);
  }

  test::BackendUnderTest cuda_;
  bool able_ = false;
  test::MemoryWeight source_ = test::RandomFp8(kN, kK, test::WeightKind::kGaussian, 4);
  std::shared_ptr<ResidentWeight> weight_;
  std::vector<uint16_t> x_;
  DeviceBuffer rows_, codes_, scales_, output_;
  std::vector<uint8_t> host_codes_;
  std::vector<float> host_scales_;
};

TEST_F(W8A8Test, RightScalesPassAndTheSameScalesInTheWrongLayoutDoNot) {
  FULCRUM_NEED_BACKEND(cuda_);
  if (!able_) GTEST_SKIP() << "not for this device";
  Quantise();
  if (HasFatalFailure()) return;
  const numerics::Verdict right = Check(Product(host_scales_));
  EXPECT_TRUE(right.ok) << right.Describe();

  // As a library that wants [token][block] would be given them.
  std::vector<float> by_token(host_scales_.size());
  for (int token = 0; token < kM; ++token) {
    for (int block = 0; block < kBlocks; ++block) {
      by_token[token * kBlocks + block] = host_scales_[block * kM + token];
    }
  }
  const numerics::Verdict transposed = Check(Product(by_token));
  EXPECT_FALSE(transposed.ok) << transposed.Describe();
  EXPECT_GT(transposed.relative_rms, 2 * right.relative_rms);

  // One block late.
  std::vector<float> late = host_scales_;
  std::rotate(late.begin(), late.begin() + kM, late.end());
  EXPECT_FALSE(Check(Product(late)).ok);
}

TEST_F(W8A8Test, EveryTileGivesTheSameBits) {
  FULCRUM_NEED_BACKEND(cuda_);
  if (!able_) GTEST_SKIP() << "not for this device";
  Quantise();
  if (HasFatalFailure()) return;
  const std::vector<float> first = Product(host_scales_, 0);
  EXPECT_TRUE(Check(first).ok);
  for (int tile = 1; tile < kW8A8Tiles; ++tile) {
    const std::vector<float> other = Product(host_scales_, tile);
    EXPECT_EQ(std::memcmp(first.data(), other.data(), first.size() * 4), 0) << tile;
  }
}

TEST_F(W8A8Test, CodesAndScalesAreWhatTheFormatSays) {
  FULCRUM_NEED_BACKEND(cuda_);
  if (!able_) GTEST_SKIP() << "not for this device";
  // Row 0: zeros; row 1: a NaN in block 2; row 2: an infinity in block 3; row 3: the least values;
  // row 4: blocks whose largest value is the largest code and what some stacks make NaN of, beside
  // every step of the least codes.
  std::fill_n(x_.begin(), kK, uint16_t{0x8000});
  x_[kK + 2 * kBlockK + 5] = 0x7fc0;
  x_[2 * kK + 3 * kBlockK + 127] = 0xff80;
  std::fill_n(x_.begin() + 3 * kK, kK, uint16_t{0x0001});
  constexpr float kEdges[] = {448, 464, 465, 1000, -448, -464, -465, -1000};
  for (int block = 0; block < kBlocks; ++block) {
    uint16_t* const at = x_.data() + 4 * kK + block * kBlockK;
    for (int i = 0; i < kBlockK; ++i) at[i] = F32ToBf16(static_cast<float>(i - 64) * 0x1p-11f);
    at[block] = F32ToBf16(kEdges[block % 8]);
  }
  Quantise();
  if (HasFatalFailure()) return;
  for (int token = 0; token < kM; ++token) {
    for (int block = 0; block < kBlocks; ++block) {
      const uint8_t* const codes = host_codes_.data() + token * kK + block * kBlockK;
      const float scale = host_scales_[block * kM + token];
      SCOPED_TRACE(testing::Message() << "token " << token << " block " << block);
      if ((token == 1 && block == 2) || (token == 2 && block == 3)) {
        for (int i = 0; i < kBlockK; ++i) ASSERT_TRUE(std::isnan(E4m3ToF32(codes[i])));
        continue;
      }
      float largest = 0;
      for (int i = 0; i < kBlockK; ++i) {
        largest = std::max(largest, std::abs(Bf16ToF32(x_[token * kK + block * kBlockK + i])));
      }
      ASSERT_EQ(scale, largest / 448);
      if (token == 3) continue;  // whose scale has no finite inverse
      const float inverse = scale > 0 ? 1 / scale : 0;
      for (int i = 0; i < kBlockK; ++i) {
        const float value = Bf16ToF32(x_[token * kK + block * kBlockK + i]);
        ASSERT_EQ(codes[i], F32ToE4m3(value * inverse)) << value;
      }
    }
  }
}

}  // namespace
}  // namespace fulcrum::cuda
