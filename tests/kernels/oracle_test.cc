// The oracle as a whole: its bits against a restatement of the orders at many K, exact probes, rows
// that must not touch each other, and what it refuses. Sums worked out by hand are in
// order_test.cc; products of other implementations, which take a tolerance, in budget_test.cc.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/oracle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/q2_0.h"
#include "kernels/formats/q8_activation.h"
#include "kernels/numerics/order.h"
#include "kernels/numerics/tensor_core.h"
#include "tests/support/random_weights.h"

namespace fulcrum::numerics {
namespace {

using test::ActivationKind;
using test::WeightKind;
using DotFn = float (*)(std::span<const uint16_t>, std::span<const float>,
                        std::span<const uint16_t>);

constexpr NumericsClass kOracleClasses[] = {NumericsClass::kExact, NumericsClass::kMma,
                                            NumericsClass::kBlockfold};

uint32_t Bits(float v) { return std::bit_cast<uint32_t>(v); }

// ---- The orders restated with other loops, no padding anywhere ----

float ScaleAt(std::span<const float> scales, size_t block) {
  return scales.empty() ? 1.0f : scales[block];
}

float Restated(const std::vector<float>& segment_sums) {
  return std::accumulate(segment_sums.begin() + 1, segment_sums.end(), segment_sums[0]) + 0.0f;
}

size_t SegmentOf(size_t i, size_t k) { return i / 128 / static_cast<size_t>(SegmentBlocks(k)); }

float RestatedExact(std::span<const uint16_t> w, std::span<const float> scales,
                    std::span<const uint16_t> x) {
  std::vector<std::array<float, 4>> lanes(SegmentOf(w.size() - 1, w.size()) + 1);
  for (size_t i = 0; i < w.size(); ++i) {
    const float xs = Bf16ToF32(x[i]) * ScaleAt(scales, i / 128);
    float& lane = lanes[SegmentOf(i, w.size())][(i >> 1) & 3];
    lane = std::fma(Bf16ToF32(w[i]), xs, lane);
  }
  std::vector<float> sums;
  for (const auto& [a0, a1, a2, a3] : lanes) sums.push_back((a0 + a2) + (a1 + a3));
  return Restated(sums);
}

float RestatedFold(std::span<const float> scales, const std::vector<float>& inner, size_t k) {
  std::vector<float> sums(SegmentOf(k - 1, k) + 1);
  for (size_t b = 0; b < inner.size(); ++b) {
    float& outer = sums[SegmentOf(b * 128, k)];
    outer = std::fma(ScaleAt(scales, b), inner[b], outer);
  }
  return Restated(sums);
}

float RestatedMma(std::span<const uint16_t> w, std::span<const float> scales,
                  std::span<const uint16_t> x) {
  std::vector<float> inner;
  uint32_t acc = 0;
  for (size_t i = 0; i < w.size(); i += 16) {
    if (i % 128 == 0) acc = 0;
    std::array<uint16_t, 16> a{}, b{};
    const size_t count = std::min<size_t>(16, w.size() - i);
    std::copy_n(x.begin() + i, count, a.begin());
    std::copy_n(w.begin() + i, count, b.begin());
    acc = TensorCoreStep(a.data(), b.data(), acc);
    if (i % 128 == 112 || i + 16 >= w.size()) inner.push_back(std::bit_cast<float>(acc));
  }
  return RestatedFold(scales, inner, w.size());
}

float RestatedBlockfold(std::span<const uint16_t> w, std::span<const float> scales,
                        std::span<const uint16_t> x) {
  std::vector<float> inner((w.size() + 127) / 128, 0.0f);
  for (size_t i = 0; i < (w.size() + 15) / 16 * 16; ++i) {
    constexpr size_t kTaken[] = {1, 0, 9, 8, 3, 2, 11, 10, 5, 4, 13, 12, 7, 6, 15, 14};
    const size_t taken = i / 16 * 16 + kTaken[i % 16];
    if (taken >= w.size()) continue;
    float& chain = inner[i / 128];
    chain = std::fma(Bf16ToF32(w[taken]), Bf16ToF32(x[taken]), chain);
  }
  return RestatedFold(scales, inner, w.size());
}

float RestatedQ2(std::span<const std::byte> row, int block, std::span<const uint16_t> x) {
  std::vector<int8_t> q(x.size());
  std::vector<float> d8(x.size() / 32), ones(x.size());
  QuantizeQ8Row(x, q, d8);
  std::vector<float> lane(32);
  for (int l = 0; l < 32; ++l) {
    std::array<float, 4> warp{};
    for (int t = 0; t < 4; ++t) {
      for (size_t c = l + 32 * t; c < d8.size(); c += 128) {
        float sum = 0;  // of integers below 2^13: exact
        for (size_t i = c * 32; i < c * 32 + 32; ++i) {
          sum += static_cast<float>(Q2Code(row, block, i) * q[i] - q[i]);
        }
        warp[t] = std::fma(Q2Scale(row, block, c * 32) * d8[c], sum, warp[t]);
      }
    }
    lane[l] = warp[0] + warp[1] + warp[2] + warp[3];
  }
  for (const int stride : {16, 8, 4, 2, 1}) {
    const std::vector<float> before = lane;
    for (int l = 0; l < 32; ++l) lane[l] = before[l] + before[l ^ stride];
  }
  return lane[31] + 0.0f;  // every lane ends with the same sum
}

struct Class {
  const char* name;
  DotFn oracle, restated;
};
constexpr Class kClasses[] = {{"exact", ExactDot, RestatedExact},
                              {"mma", MmaDot, RestatedMma},
                              {"blockfold", BlockfoldDot, RestatedBlockfold}};

class OracleRestated : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(K, OracleRestated,
                         ::testing::Values(1, 8, 15, 16, 17, 127, 128, 129, 2176, 2177, 2560, 5120,
                                           6144, 17408));

TEST_P(OracleRestated, HasTheOraclesBits) {
  const int64_t k = GetParam();
  for (const WeightKind wk : test::kAllWeightKinds) {
    for (const ActivationKind xk : test::kAllActivationKinds) {
      const uint64_t seed = k + static_cast<int>(wk) * 10 + static_cast<int>(xk);
      const test::MemoryWeight fp8 = test::RandomFp8(1, k, wk, seed);
      const test::MemoryWeight bf16 = test::RandomBf16(1, k, wk, seed);
      const std::vector<uint16_t> x = test::RandomActivations(1, k, xk, seed),
                                  w = test::RowAsBf16(fp8, 0);
      const std::vector<uint16_t> dense = test::RowAsBf16(bf16, 0);
      for (const Class& c : kClasses) {
        const std::string what = absl::StrCat(c.name, " ", Name(wk), " ", Name(xk));
        EXPECT_EQ(Bits(c.oracle(w, fp8.scales(), x)), Bits(c.restated(w, fp8.scales(), x))) << what;
        EXPECT_EQ(Bits(c.oracle(dense, {}, x)), Bits(c.restated(dense, {}, x))) << what << " bf16";
      }
    }
  }
}

class OracleQ2Restated : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(K, OracleQ2Restated,
                         ::testing::Values(128, 256, 1024, 2560, 4096, 4224, 5120, 6144, 17408));

TEST_P(OracleQ2Restated, HasTheOraclesBits) {
  const int64_t k = GetParam();
  for (const int block : {64, 128}) {
    for (const WeightKind wk : test::kAllWeightKinds) {
      for (const ActivationKind xk : test::kAllActivationKinds) {
        const uint64_t seed = k + static_cast<int>(wk) * 10 + static_cast<int>(xk);
        const test::MemoryWeight weight = test::RandomQ2(1, k, wk, seed, block);
        const std::vector<uint16_t> x = test::RandomActivations(1, k, xk, seed);
        EXPECT_EQ(Bits(ExactQ2Dot(weight.rows(), block, x)),
                  Bits(RestatedQ2(weight.rows(), block, x)))
            << block << " " << Name(wk) << " " << Name(xk);
      }
    }
  }
}

// ---- Products ----

std::vector<float> Product(NumericsClass c, const WeightSource& weight, std::span<const uint16_t> x,
                           int m) {
  std::vector<float> out(m * weight.spec().n, -7.0f);
  const absl::Status status = ReferenceProduct(c, weight, 0, weight.spec().n, x, m, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

// Every weight row alone, every activation row alone: the bits are those of the whole product.
TEST(ReferenceProduct, IsMadeOfIndependentElements) {
  constexpr int m = 3;
  const int64_t n = 131, k = 320;
  for (const WeightFormat format : kAllWeightFormats) {
    const test::MemoryWeight weight =
        test::RandomWeight(format, n, k, WeightKind::kNegativeScales, 1);
    const auto x = test::RandomActivations(m, k, ActivationKind::kGaussian, 2);
    for (const NumericsClass c : kOracleClasses) {
      if (format == WeightFormat::kQ2_0 && c != NumericsClass::kExact) continue;
      const std::vector<float> whole = Product(c, weight, x, m);
      std::vector<float> part(m * 4);
      ASSERT_TRUE(ReferenceProduct(c, weight, 126, 4, x, m, part).ok());
      for (int row = 0; row < m; ++row) {
        for (int64_t col = 0; col < n; ++col) {
          const auto element = ReferenceElement(c, weight, col, std::span(x).subspan(row * k, k));
          ASSERT_TRUE(element.ok()) << element.status();
          ASSERT_EQ(Bits(*element), Bits(whole[row * n + col])) << row << ", " << col;
          if (col >= 126 && col < 130) {
            ASSERT_EQ(Bits(part[row * 4 + col - 126]), Bits(*element));
          }
        }
      }
    }
  }
}

TEST(ReferenceProduct, NonFiniteActivationsTouchTheirOwnRowOnly) {
  constexpr int m = 4;
  const int64_t n = 9, k = 192;
  for (const WeightFormat format : kAllWeightFormats) {
    const test::MemoryWeight weight = test::RandomWeight(format, n, k, WeightKind::kGaussian, 3);
    const auto clean = test::RandomActivations(m, k, ActivationKind::kGaussian, 4);
    for (const uint16_t bad : {0x7fff, 0x7f80, 0xff80}) {
      auto x = clean;
      x[2 * k + 17] = bad;
      for (const NumericsClass c : kOracleClasses) {
        if (format == WeightFormat::kQ2_0 && c != NumericsClass::kExact) continue;
        const std::vector<float> before = Product(c, weight, clean, m);
        const std::vector<float> after = Product(c, weight, x, m);
        for (int64_t i = 0; i < m * n; ++i) {
          if (i / n != 2) {
            ASSERT_EQ(Bits(after[i]), Bits(before[i])) << i;
          } else if (bad == 0x7fff || format == WeightFormat::kQ2_0) {
            ASSERT_EQ(Bits(after[i]), 0x7fffffffu) << "the one NaN";
          } else {
            ASSERT_FALSE(std::isfinite(after[i])) << i;
          }
        }
      }
    }
  }
}

TEST(ReferenceProduct, NonFiniteWeightsGiveIeeeResults) {
  test::MemoryWeight weight = test::RandomFp8(2, 130, WeightKind::kUniformCodes, 5);
  const auto x = test::RandomActivations(1, 130, ActivationKind::kGaussian, 6);
  weight.mutable_rows()[7] = std::byte{0x7f};
  for (const NumericsClass c : kOracleClasses) {
    const std::vector<float> out = Product(c, weight, x, 1);
    EXPECT_EQ(Bits(out[0]), 0x7fffffffu);
    EXPECT_TRUE(std::isfinite(out[1]));
  }
}

// One-hot activations, each k once, with power-of-two scales: every class gives the weight itself.
class OracleProbe : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(K, OracleProbe, ::testing::Values(1, 16, 127, 129, 300));

TEST_P(OracleProbe, OneHotActivationsReadEveryWeight) {
  const int64_t n = 130, k = GetParam();
  for (const WeightKind kind : test::kAllWeightKinds) {
    test::MemoryWeight fp8 = test::RandomFp8(n, k, kind, 7);
    test::MakeScalesPowersOfTwo(fp8.mutable_scales());
    const test::MemoryWeight bf16 = test::RandomBf16(n, k, kind, 8);
    const float value = -0x1p-3f;
    const auto x = test::OneHotActivations(k, value);
    for (const int64_t row : {0, 127, 128, 129}) {  // both rows of the scale grid
      const auto check = [&](const test::MemoryWeight& weight, NumericsClass c) {
        std::vector<float> out(k);
        ASSERT_TRUE(ReferenceProduct(c, weight, row, 1, x, static_cast<int>(k), out).ok());
        const std::vector<uint16_t> w = test::RowAsBf16(weight, row);
        for (int64_t i = 0; i < k; ++i) {
          const float scale = weight.scales().empty()
                                  ? 1.0f
                                  : weight.scales()[row / 128 * ((k + 127) / 128) + i / 128];
          ASSERT_EQ(Bits(out[i]), Bits(Bf16ToF32(w[i]) * scale * value + 0.0f))
              << weight.origin() << " " << Name(c) << " at " << row << ", " << i;
        }
      };
      for (const NumericsClass c : kOracleClasses) {
        check(fp8, c);
        check(bf16, c);
      }
    }
  }
}

// 127 * 2^e quantises without loss: q = 127, scale 2^e.
TEST(OracleQ2Probe, OneHotActivationsReadEveryQ2Weight) {
  const int64_t n = 5, k = 384;
  for (const int block : {64, 128}) {
    for (const WeightKind kind : test::kAllWeightKinds) {
      const test::MemoryWeight weight = test::RandomQ2(n, k, kind, 9, block);
      const auto x = test::OneHotActivations(k, 127 * 0x1p-4f);
      const std::vector<float> out = Product(NumericsClass::kExact, weight, x, static_cast<int>(k));
      std::vector<float> decoded(k);
      for (int64_t row = 0; row < n; ++row) {
        const int64_t row_bytes = weight.spec().row_bytes();
        DecodeQ2Row(weight.rows().subspan(row * row_bytes, row_bytes), block, decoded);
        for (int64_t i = 0; i < k; ++i) {
          ASSERT_EQ(Bits(out[i * n + row]), Bits(decoded[i] * 127 * 0x1p-4f + 0.0f))
              << row << ", " << i;
        }
      }
    }
  }
}

// ---- What is refused ----

TEST(ReferenceProduct, RefusesWhatItHasNoOrderFor) {
  using ::testing::HasSubstr;
  const test::MemoryWeight fp8 = test::RandomFp8(3, 64, WeightKind::kGaussian, 10);
  const test::MemoryWeight q2 = test::RandomQ2(3, 64, WeightKind::kGaussian, 10);
  const std::vector<uint16_t> x(64), short_x(63);
  const auto message = [](const absl::StatusOr<float>& r) {
    EXPECT_EQ(r.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(r.status().message());
  };
  EXPECT_THAT(message(ReferenceElement(NumericsClass::kMma, q2, 0, x)), HasSubstr("mma"));
  EXPECT_THAT(message(ReferenceElement(NumericsClass::kBlockfold, q2, 0, x)), HasSubstr("q2_0"));
  EXPECT_THAT(message(ReferenceElement(NumericsClass::kW8A8, fp8, 0, x)), HasSubstr("w8a8"));
  EXPECT_THAT(message(ReferenceElement(NumericsClass::kExact, fp8, 3, x)), HasSubstr("N = 3"));
  EXPECT_THAT(message(ReferenceElement(NumericsClass::kExact, fp8, -1, x)), HasSubstr("[-1, 0)"));
  EXPECT_THAT(message(ReferenceElement(NumericsClass::kExact, fp8, 0, short_x)), HasSubstr("63"));
  std::vector<double> out(3);
  EXPECT_FALSE(Float64Product(fp8, 1, 3, x, 1, out).ok());
}

// A source that fails is reported, not papered over.
class LostWeight : public test::MemoryWeight {
 public:
  using test::MemoryWeight::MemoryWeight;
  absl::Status ReadRows(int64_t, int64_t, std::span<std::byte>) const override {
    return absl::DataLossError("the file ended");
  }
};

TEST(ReferenceProduct, PassesOnWhatTheSourceSays) {
  const LostWeight lost({.name = "lost", .format = WeightFormat::kBf16, .n = 1, .k = 2}, {});
  const std::vector<uint16_t> x(2);
  std::vector<double> out(1);
  EXPECT_EQ(ReferenceElement(NumericsClass::kExact, lost, 0, x).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(Float64Product(lost, 0, 1, x, 1, out).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fulcrum::numerics
