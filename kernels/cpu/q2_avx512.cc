// q2_0 rows with AVX-512 VNNI: a chunk's 32 products are eight four-way integer dot products in its
// lane. Raw intrinsics: Highway 1.0 has no such product.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/q2_kernel.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own header hands its intrinsics an undefined register on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <array>
#include <utility>

#define FULCRUM_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace fulcrum::cpu {
namespace {

constexpr int kMaxColumns = 8;
constexpr int kVectorsPerTurn = numerics::kQ2Threads / ChunkLayout::kLanes;  // 8

// The codes of 16 chunks: word w as four codes a lane.
FULCRUM_TARGET inline void Extract(__m512i half0, __m512i half1, __m512i (&words)[8]) {
  const __m512i mask = _mm512_set1_epi8(3);
  words[0] = _mm512_and_si512(half0, mask);
  words[1] = _mm512_and_si512(_mm512_srli_epi32(half0, 2), mask);
  words[2] = _mm512_and_si512(_mm512_srli_epi32(half0, 4), mask);
  words[3] = _mm512_and_si512(_mm512_srli_epi32(half0, 6), mask);
  words[4] = _mm512_and_si512(half1, mask);
  words[5] = _mm512_and_si512(_mm512_srli_epi32(half1, 2), mask);
  words[6] = _mm512_and_si512(_mm512_srli_epi32(half1, 4), mask);
  words[7] = _mm512_and_si512(_mm512_srli_epi32(half1, 6), mask);
}

// Strides 8, 4, 2, 1 of the butterfly; 16 was the sum of the two vectors.
FULCRUM_TARGET inline float Butterfly(__m512 lanes) {
  const __m256 a =
      _mm256_add_ps(_mm512_castps512_ps256(lanes),
                    _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(lanes), 1)));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

template <int kColumns>
FULCRUM_TARGET void Row(const Q2Row& row, const Q2Column* columns, float* sums) {
  const int64_t vectors = (row.chunks + ChunkLayout::kLanes - 1) / ChunkLayout::kLanes;
  const int shift = row.chunks_per_scale == 2 ? 1 : 2;
  const __m512i scale_of_lane =
      _mm512_srli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                        static_cast<unsigned>(shift));
  // Virtual threads 16 i .. 16 i + 15 for even and for odd i, summed in ascending i.
  __m512 even[kColumns], odd[kColumns];
  for (int c = 0; c < kColumns; ++c) even[c] = odd[c] = _mm512_setzero_ps();

  for (int64_t turn = 0; turn < std::min<int64_t>(kVectorsPerTurn, vectors); ++turn) {
    __m512 v[kColumns];
    for (int c = 0; c < kColumns; ++c) v[c] = _mm512_setzero_ps();
    for (int64_t vector = turn; vector < vectors; vector += kVectorsPerTurn) {
      const uint8_t* const at = row.codes + vector * 128;
      const uint16_t* const d = row.scales + (vector * ChunkLayout::kLanes >> shift);
      const int64_t lanes = row.chunks - vector * ChunkLayout::kLanes;
      __m512i half0, half1;
      __m128i halves;
      if (lanes >= ChunkLayout::kLanes) [[likely]] {
        half0 = _mm512_loadu_si512(at);
        half1 = _mm512_loadu_si512(at + 64);
        // With four chunks a scale this reads four more than needed, of the next vector or of the
        // slack at the buffer's end.
        halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(d));
      } else {
        const auto mask = static_cast<__mmask16>((1u << lanes) - 1);
        half0 = _mm512_maskz_loadu_epi32(mask, at);
        half1 = _mm512_maskz_loadu_epi32(mask, at + lanes * 4);
        halves = _mm_maskz_loadu_epi16(static_cast<__mmask8>((1u << (lanes >> shift)) - 1), d);
      }
      _mm_prefetch(reinterpret_cast<const char*>(at + row.next_row_bytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(at + row.next_row_bytes + 64), _MM_HINT_T0);
      const __m512 d2 =
          _mm512_permutexvar_ps(scale_of_lane, _mm512_cvtph_ps(_mm256_zextsi128_si256(halves)));
      __m512i words[8];
      Extract(half0, half1, words);
      for (int c = 0; c < kColumns; ++c) {
        const Q2Column& x = columns[c];
        const int8_t* const q = x.codes + vector * 512;
        __m512i sum = _mm512_loadu_si512(x.minus_sums + vector * ChunkLayout::kLanes);
        __m512i other = _mm512_setzero_si512();
        for (int word = 0; word < 8; word += 2) {
          sum = _mm512_dpbusd_epi32(sum, words[word], _mm512_loadu_si512(q + word * 64));
          other =
              _mm512_dpbusd_epi32(other, words[word + 1], _mm512_loadu_si512(q + word * 64 + 64));
        }
        const __m512 d8 = _mm512_loadu_ps(x.scales + vector * ChunkLayout::kLanes);
        v[c] = _mm512_fmadd_ps(_mm512_mul_ps(d2, d8),
                               _mm512_cvtepi32_ps(_mm512_add_epi32(sum, other)), v[c]);
      }
    }
    for (int c = 0; c < kColumns; ++c) {
      if (turn % 2 == 0) {
        even[c] = _mm512_add_ps(even[c], v[c]);
      } else {
        odd[c] = _mm512_add_ps(odd[c], v[c]);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) sums[c] = Butterfly(_mm512_add_ps(even[c], odd[c]));
}

template <size_t... i>
constexpr std::array<Q2RowKernel, sizeof...(i)> Table(std::index_sequence<i...>) {
  return {&Row<static_cast<int>(i) + 1>...};
}
constexpr auto kKernels = Table(std::make_index_sequence<kMaxColumns>());

}  // namespace

Q2Kernel Q2KernelAvx512() { return {kKernels.data(), kMaxColumns}; }

}  // namespace fulcrum::cpu

#else
namespace fulcrum::cpu {
Q2Kernel Q2KernelAvx512() { return Q2KernelPortable(); }
}  // namespace fulcrum::cpu
#endif
