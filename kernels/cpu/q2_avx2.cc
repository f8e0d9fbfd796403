// q2_0 rows with AVX2: codes times q in byte pairs, summed exactly in 16 bits (a chunk's sixteen
// pair sums stay below 8 * 2 * 3 * 127), then in 32.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/q2_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#define FULCRUM_TARGET __attribute__((target("avx2,fma,f16c")))

namespace fulcrum::cpu {
namespace {

constexpr int kMaxColumns = 4;
constexpr int kHalfLanes = 8;  // chunks of one register
constexpr int kVectorsPerTurn = numerics::kQ2Threads / ChunkLayout::kLanes;

FULCRUM_TARGET inline __m256i LoadCodes(const uint8_t* at, int64_t lanes) {
  if (lanes >= kHalfLanes) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lanes)), lane);
  return _mm256_maskload_epi32(reinterpret_cast<const int*>(at), mask);
}

// The scale of each of up to 8 chunks, zero beyond `lanes`.
FULCRUM_TARGET inline __m256 LoadScales(const uint16_t* d, int64_t lanes, int shift) {
  uint16_t halves[4] = {};
  const int64_t count = std::min<int64_t>(lanes, kHalfLanes) >> shift;
  if (count == 4) {
    std::memcpy(halves, d, 8);
  } else {
    std::memcpy(halves, d, static_cast<size_t>(count) * 2);
  }
  const __m128 scales = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(halves)));
  const __m256i index = _mm256_srli_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), shift);
  return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(scales), index);
}

FULCRUM_TARGET inline void Extract(__m256i half0, __m256i half1, __m256i (&words)[8]) {
  const __m256i mask = _mm256_set1_epi8(3);
  words[0] = _mm256_and_si256(half0, mask);
  words[1] = _mm256_and_si256(_mm256_srli_epi32(half0, 2), mask);
  words[2] = _mm256_and_si256(_mm256_srli_epi32(half0, 4), mask);
  words[3] = _mm256_and_si256(_mm256_srli_epi32(half0, 6), mask);
  words[4] = _mm256_and_si256(half1, mask);
  words[5] = _mm256_and_si256(_mm256_srli_epi32(half1, 2), mask);
  words[6] = _mm256_and_si256(_mm256_srli_epi32(half1, 4), mask);
  words[7] = _mm256_and_si256(_mm256_srli_epi32(half1, 6), mask);
}

FULCRUM_TARGET inline float Butterfly(__m256 low, __m256 high) {
  const __m256 a = _mm256_add_ps(low, high);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

template <int kColumns>
FULCRUM_TARGET void Row(const Q2Row& row, const Q2Column* columns, float* sums) {
  const int64_t vectors = (row.chunks + ChunkLayout::kLanes - 1) / ChunkLayout::kLanes;
  const int shift = row.chunks_per_scale == 2 ? 1 : 2;
  const __m256i ones = _mm256_set1_epi16(1);
  // [i odd][half of the 16 lanes][column], as in the AVX-512 kernel.
  __m256 total[2][2][kColumns];
  for (auto& parity : total) {
    for (auto& half : parity) {
      for (__m256& v : half) v = _mm256_setzero_ps();
    }
  }
  for (int64_t turn = 0; turn < std::min<int64_t>(kVectorsPerTurn, vectors); ++turn) {
    for (int half = 0; half < 2; ++half) {
      __m256 v[kColumns];
      for (__m256& column : v) column = _mm256_setzero_ps();
      for (int64_t vector = turn; vector < vectors; vector += kVectorsPerTurn) {
        const int64_t chunk = vector * ChunkLayout::kLanes + half * kHalfLanes;
        const int64_t lanes = row.chunks - chunk;
        if (lanes <= 0) break;
        const int64_t width =
            std::min<int64_t>(ChunkLayout::kLanes, row.chunks - vector * ChunkLayout::kLanes);
        const uint8_t* const at = row.codes + vector * 128 + half * kHalfLanes * 4;
        _mm_prefetch(reinterpret_cast<const char*>(at + row.next_row_bytes), _MM_HINT_T0);
        __m256i words[8];
        Extract(LoadCodes(at, lanes), LoadCodes(at + width * 4, lanes), words);
        const __m256 d2 = LoadScales(row.scales + (chunk >> shift), lanes, shift);
        for (int c = 0; c < kColumns; ++c) {
          const Q2Column& x = columns[c];
          const int8_t* const q = x.codes + vector * 512 + half * 32;
          __m256i pairs = _mm256_setzero_si256();
          for (int word = 0; word < 8; ++word) {
            const auto* const from = reinterpret_cast<const __m256i*>(q + word * 64);
            pairs = _mm256_add_epi16(pairs,
                                     _mm256_maddubs_epi16(words[word], _mm256_loadu_si256(from)));
          }
          const __m256i sum = _mm256_add_epi32(
              _mm256_madd_epi16(pairs, ones),
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.minus_sums + chunk)));
          v[c] = _mm256_fmadd_ps(_mm256_mul_ps(d2, _mm256_loadu_ps(x.scales + chunk)),
                                 _mm256_cvtepi32_ps(sum), v[c]);
        }
      }
      for (int c = 0; c < kColumns; ++c) {
        total[turn % 2][half][c] = _mm256_add_ps(total[turn % 2][half][c], v[c]);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    sums[c] = Butterfly(_mm256_add_ps(total[0][0][c], total[1][0][c]),
                        _mm256_add_ps(total[0][1][c], total[1][1][c]));
  }
}

template <size_t... i>
constexpr std::array<Q2RowKernel, sizeof...(i)> Table(std::index_sequence<i...>) {
  return {&Row<static_cast<int>(i) + 1>...};
}
constexpr auto kKernels = Table(std::make_index_sequence<kMaxColumns>());

}  // namespace

Q2Kernel Q2KernelAvx2() { return {kKernels.data(), kMaxColumns}; }

}  // namespace fulcrum::cpu

#else
namespace fulcrum::cpu {
Q2Kernel Q2KernelAvx2() { return Q2KernelPortable(); }
}  // namespace fulcrum::cpu
#endif
