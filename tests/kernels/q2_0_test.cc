// Q2_0 blocks of both sizes: decoded bit for bit as another implementation did, every code and
// every scale, and the reference quantiser's rule.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats/q2_0.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/formats/bf16.h"
#include "tests/support/reference_files.h"

namespace fulcrum {
namespace {

std::vector<std::byte> Block(int block, uint16_t d, std::span<const int> codes) {
  std::vector<std::byte> bytes(Q2BlockBytes(block));
  bytes[0] = static_cast<std::byte>(d & 0xff);
  bytes[1] = static_cast<std::byte>(d >> 8);
  for (int i = 0; i < block; ++i) {
    bytes[2 + i / 4] |= static_cast<std::byte>(codes[i] << 2 * (i % 4));
  }
  return bytes;
}

TEST(Q2Block, SizesAreThoseOfTheTwoVariants) {
  EXPECT_EQ(Q2BlockBytes(64), 18);
  EXPECT_EQ(Q2BlockBytes(128), 34);
}

class Q2DecodedFile : public ::testing::TestWithParam<test::ReferenceFile> {};
INSTANTIATE_TEST_SUITE_P(Files, Q2DecodedFile, ::testing::ValuesIn(test::kQ2Files));

TEST_P(Q2DecodedFile, DecodesToTheSameBits) {
  const test::ReferenceFile& file = GetParam();
  const test::MemoryWeight weight = test::Load(file);
  const auto expected = test::ReadValues<uint32_t>(std::string(file.stem) + ".dequant.f32");
  ASSERT_EQ(static_cast<int64_t>(expected.size()), file.n * file.k);
  ASSERT_EQ(static_cast<int64_t>(weight.rows().size()), file.n * weight.spec().row_bytes());
  std::vector<float> row(file.k);
  for (int64_t n = 0; n < file.n; ++n) {
    const auto bytes =
        weight.rows().subspan(n * weight.spec().row_bytes(), weight.spec().row_bytes());
    DecodeQ2Row(bytes, 64, row);
    for (int64_t k = 0; k < file.k; ++k) {
      ASSERT_EQ(std::bit_cast<uint32_t>(row[k]), expected[n * file.k + k]) << n << ", " << k;
      ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(Q2Code(bytes, 64, k) - 1) *
                                        Q2Scale(bytes, 64, k)),
                expected[n * file.k + k]);
    }
  }
}

class Q2BlockSize : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Both, Q2BlockSize, ::testing::Values(64, 128));

// Every FP16 scale (subnormal, negative, both zeros, infinite) with every code, code 3 included.
TEST_P(Q2BlockSize, EveryScaleWithEveryCode) {
  const int block = GetParam();
  std::vector<int> codes(block);
  for (int i = 0; i < block; ++i) codes[i] = (i + i / 4) % 4;
  std::vector<float> out(block);
  for (uint32_t d = 0; d <= 0xffff; ++d) {
    const float scale = F16ToF32(static_cast<uint16_t>(d));
    DecodeQ2Row(Block(block, static_cast<uint16_t>(d), codes), block, out);
    for (int i = 0; i < block; ++i) {
      const float values[] = {-scale, 0 * scale, scale, scale + scale};
      const float expected = values[codes[i]];
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out[i]));
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected))
            << "d " << d << " code " << codes[i];
      }
    }
  }
}

TEST_P(Q2BlockSize, EachBlockOfARowHasItsOwnScaleAndCodes) {
  const int block = GetParam();
  const test::MemoryWeight weight =
      test::RandomQ2(1, 5 * block, test::WeightKind::kNegativeScales, 3, block);
  std::vector<float> whole(5 * block), alone(block);
  DecodeQ2Row(weight.rows(), block, whole);
  for (int b = 0; b < 5; ++b) {
    DecodeQ2Row(weight.rows().subspan(b * Q2BlockBytes(block), Q2BlockBytes(block)), block, alone);
    for (int i = 0; i < block; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(whole[b * block + i]), std::bit_cast<uint32_t>(alone[i]));
    }
  }
}

TEST_P(Q2BlockSize, EncodeRoundTripsEveryTernaryBlock) {
  const int block = GetParam();
  const int64_t k = 40 * block;
  test::Rng rng(4);
  std::vector<float> w(k), decoded(k);
  for (int64_t i = 0; i < k; ++i) {
    const float d = F16ToF32(static_cast<uint16_t>(1 + 613 * (i / block)));  // subnormals too
    w[i] = d * static_cast<float>(i % block == 0 ? 1 : rng.Below(3) - 1);
  }
  std::vector<std::byte> row(40 * Q2BlockBytes(block));
  EncodeQ2Row(w, block, row);
  DecodeQ2Row(row, block, decoded);
  EXPECT_EQ(decoded, w);
}

TEST_P(Q2BlockSize, EncodeRoundsHalfAwayAtHalfTheLargest) {
  const int block = GetParam();
  std::vector<float> w(block, 0.0f);
  const float below = std::nextafter(0.5f, 0.0f);
  w[0] = 1;
  w[1] = -1;
  w[2] = 0.5f;
  w[3] = -0.5f;
  w[4] = below;
  w[5] = -below;
  std::vector<std::byte> row(Q2BlockBytes(block));
  EncodeQ2Row(w, block, row);
  EXPECT_EQ(Q2Scale(row, block, 0), 1.0f);
  const int expected[] = {2, 0, 2, 0, 1, 1, 1};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(Q2Code(row, block, i), expected[i]) << i;
}

// The stored scale is rounded to FP16; the ratio that picks the code is not.
TEST_P(Q2BlockSize, EncodeUsesTheUnroundedScaleForCodes) {
  const int block = GetParam();
  std::vector<float> w(block, 0.0f);
  w[0] = 1 + 0x1p-12f;     // stored as 1
  w[1] = 0.5f;             // below half of the true largest
  w[2] = 0.5f + 0x1p-13f;  // exactly half of it
  std::vector<std::byte> row(Q2BlockBytes(block));
  EncodeQ2Row(w, block, row);
  EXPECT_EQ(Q2Scale(row, block, 0), 1.0f);
  EXPECT_EQ(Q2Code(row, block, 1), 1);
  EXPECT_EQ(Q2Code(row, block, 2), 2);
}

TEST_P(Q2BlockSize, EncodeOfZerosIsScaleZeroAndCodeOne) {
  const int block = GetParam();
  std::vector<float> w(block, 0.0f);
  w[1] = -0.0f;
  std::vector<std::byte> row(Q2BlockBytes(block), std::byte{0xff});
  EncodeQ2Row(w, block, row);
  EXPECT_EQ(row[0], std::byte{0});
  EXPECT_EQ(row[1], std::byte{0});
  EXPECT_THAT(std::span(row).subspan(2), ::testing::Each(std::byte{0x55}));
}

TEST_P(Q2BlockSize, EncodeNeverWritesCodeThreeAndOverflowIsAnInfiniteScale) {
  const int block = GetParam();
  test::Rng rng(5);
  std::vector<float> w(block);
  std::vector<std::byte> row(Q2BlockBytes(block));
  for (int trial = 0; trial < 200; ++trial) {
    for (float& v : w) v = test::RandomFloat(rng, -140, 126) * (rng.Below(2) ? 1.0f : -1.0f);
    EncodeQ2Row(w, block, row);
    for (int i = 0; i < block; ++i) ASSERT_NE(Q2Code(row, block, i), 3);
  }
  w[0] = 1e6f;
  EncodeQ2Row(w, block, row);
  EXPECT_TRUE(std::isinf(Q2Scale(row, block, 0)));
}

}  // namespace
}  // namespace fulcrum
