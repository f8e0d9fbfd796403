// Per instruction set: fp8 and bf16 weights of a tile to F32, four k of 16 rows at a time.
// fp8 by byte tables where a byte permute of 128 entries exists; else as F16: the code's magnitude
// shifted into an F16 is the value times 2^-8, subnormals included, which the F16 conversion knows
// how to read. Both avoid F32 subnormal operands: reading a code as an F32 times 2^-120 would take
// fewer operations, and was measured at a thirtieth of the speed.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_CODEC_INL_H_
#undef FULCRUM_CPU_CODEC_INL_H_
#else
#define FULCRUM_CPU_CODEC_INL_H_
#endif

#include <array>
#include <bit>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/codec_tables.h"
#include "kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

// The fast fp8 decoders without a table read a NaN code as a number: weights that have one (only
// where the shard allows it) are decoded by table instead.
inline constexpr bool kByteTables = HWY_TARGET == HWY_AVX3_DL;

struct Bf16Codec {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;  // no block scales
  explicit Bf16Codec(const CpuWeight&) {}

  // w: [2 pairs][16 rows][2]. out: [4 k][kTileVecs].
  HWY_INLINE void Decode4(const uint8_t* HWY_RESTRICT w, VF (&out)[4][kTileVecs]) const {
    const DF d;
    const DU du;
    HWY_UNROLL(2)
    for (int pair = 0; pair < 2; ++pair) {
      HWY_UNROLL(4)
      for (int v = 0; v < kTileVecs; ++v) {
        const auto* at = reinterpret_cast<const uint32_t*>(w + pair * 64 + v * kLanes * 4);
        const auto both = hn::LoadU(du, at);
        out[2 * pair][v] = hn::BitCast(d, hn::ShiftLeft<16>(both));
        out[2 * pair + 1][v] = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
      }
    }
  }
};

// fp8 lines (layout.h) hold a row's two k of a pair in one 16-bit word: all 64 codes become BF16
// words, or F16 words, in place, and a word's two halves are two k.
#if HWY_TARGET == HWY_AVX3_DL
struct Fp8Codec {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  explicit Fp8Codec(const CpuWeight&) {
    const Fp8ByteTables& tables = Fp8Tables();
    for (int half = 0; half < 2; ++half) {
      low[half] = _mm512_loadu_si512(tables.low + half * 64);
      high[half] = _mm512_loadu_si512(tables.high + half * 64);
    }
  }

  // w: one line. The BF16 bytes of all 64 codes, then pairs of BF16 a row, then F32. Table look-ups
  // of 128 entries cost several operations each, so there are two and no more.
  HWY_INLINE void Decode4(const uint8_t* HWY_RESTRICT w, VF (&out)[4][kTileVecs]) const {
    const __m512i codes = _mm512_loadu_si512(w);
    const __m512i lo = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i hi = _mm512_ternarylogic_epi32(magnitude, codes, sign, 0xf8);  // a | (b & c)
    const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    HWY_UNROLL(2)
    for (int pair = 0; pair < 2; ++pair) {
      const __m512i both = pair == 0 ? _mm512_unpacklo_epi8(lo, hi) : _mm512_unpackhi_epi8(lo, hi);
      out[2 * pair][0] = VF{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
      out[2 * pair + 1][0] = VF{_mm512_castsi512_ps(_mm512_and_si512(both, upper_half))};
    }
  }

  __m512i low[2], high[2];
};
#else
struct Fp8Codec {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  explicit Fp8Codec(const CpuWeight& weight) : by_table(weight.has_nan()) {}

  // w: one line.
  HWY_INLINE void Decode4(const uint8_t* HWY_RESTRICT w, VF (&out)[4][kTileVecs]) const {
    const DF d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    if (HWY_LIKELY(!by_table)) {
      // Sign-extended and shifted, a code has its sign in bits 15 and 14 and its magnitude below.
      constexpr auto kNotBit14 = static_cast<int16_t>(0xbfff);
      constexpr auto kUpperByte = static_cast<int16_t>(0xff80);
      const VF unit = hn::Set(d, 256.0f);
#if HWY_TARGET == HWY_AVX3
      const __m512i line = _mm512_loadu_si512(w);
      const __m512i pairs_apart = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
      HWY_UNROLL(2)
      for (int odd = 0; odd < 2; ++odd) {
        const __m512i codes = odd ? line : _mm512_slli_epi16(line, 8);
        const __m512i half = _mm512_permutexvar_epi64(
            pairs_apart, _mm512_and_si512(_mm512_srai_epi16(codes, 1),
                                          _mm512_set1_epi16(kNotBit14 & kUpperByte)));
        out[odd][0] = hn::Mul(VF{_mm512_cvtph_ps(_mm512_castsi512_si256(half))}, unit);
        out[2 + odd][0] = hn::Mul(VF{_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1))}, unit);
      }
#else
      HWY_UNROLL(2)
      for (int v = 0; v < 2; ++v) {
        const __m256i line = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + v * 32));
        HWY_UNROLL(2)
        for (int odd = 0; odd < 2; ++odd) {
          const __m256i codes = odd ? line : _mm256_slli_epi16(line, 8);
          const __m256i half =
              _mm256_permute4x64_epi64(_mm256_and_si256(_mm256_srai_epi16(codes, 1),
                                                        _mm256_set1_epi16(kNotBit14 & kUpperByte)),
                                       _MM_SHUFFLE(3, 1, 2, 0));
          out[odd][v] = hn::Mul(VF{_mm256_cvtph_ps(_mm256_castsi256_si128(half))}, unit);
          out[2 + odd][v] = hn::Mul(VF{_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))}, unit);
        }
      }
#endif
      return;
    }
#endif
    const float* const values = Fp8Values();
    HWY_ALIGN float row[kTileRows];
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i < kTileRows; ++i) row[i] = values[w[Fp8LineByte(k, i)]];
      for (int v = 0; v < kTileVecs; ++v) out[k][v] = hn::Load(d, row + v * kLanes);
    }
  }

  bool by_table;
};
#endif

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_CODEC_INL_H_
