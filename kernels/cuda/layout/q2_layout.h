// The layout of a q2_0 weight's codes and scales in device memory, which pack_q2.cu writes and
// every q2_0 arm reads. N is padded to 16 with zeros.
//
// A tile is 16 rows, contiguous, in three parts: the codes of even chunks of 32 k, the scales, the
// codes of odd chunks. Both halves of the codes are next to the scales. So one bulk copy brings all
// that the even or the odd virtual threads need (order.h: a chunk belongs to the virtual thread of
// its number modulo 128).
//
// Codes of a half: [8 pairs of rows][chunks, made odd][16 bytes]; scales: [8][scales, made odd][4
// bytes]. Pair g is rows g and g + 8. The 16 bytes are the chunk's 32 codes of both rows: what a
// lane that owns a chunk reads with one load. They are four words; word t is what thread 4 g + t of
// a tensor-core fragment (m16n8k32) holds of the chunk: the k 8 t .. 8 t + 7 of both rows, so that
// (word >> 2 i) & 0x03030303 is register i of its operand, in every byte one code. Byte b of
// register i is k 8 t + 4 (i / 2) + b of row g + 8 (i % 2). A word of scales has the FP16 scale of
// row g in its low half, of row g + 8 in its high half.
//
// Odd counts put the words that a warp's eight pairs read of one chunk into different banks of
// shared memory. An offset of 64 bytes between the halves does the same for eight lanes that own
// neighbouring chunks. This and the padding of the last tile are 1.4 % of the file's bytes at K =
// 2560.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/order.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::cuda {

inline constexpr int kQ2TileRows = 16;
inline constexpr int kQ2Pairs = kQ2TileRows / 2;
inline constexpr int kQ2ChunkK = numerics::kQ2ChunkK;
inline constexpr int kQ2Threads = numerics::kQ2Threads;  // virtual
inline constexpr int kQ2ChunkBytes = 16;                 // of a pair of rows

// Sizes and places are bytes.
struct Q2Layout {
  Q2Layout() = default;
  explicit Q2Layout(const WeightSpec& spec)
      : chunks(static_cast<int>(spec.k / kQ2ChunkK)),
        scale_shift(spec.q2_block == 128 ? 2 : 1),
        half_chunks(chunks / 2),
        code_pitch((half_chunks | 1) * kQ2ChunkBytes),
        scale_pitch(((chunks >> scale_shift) | 1) * 4),
        scales_at(kQ2Pairs * code_pitch),
        odd_at(scales_at + kQ2Pairs * scale_pitch) {
    constexpr int kBanks = 128;
    while (odd_at % kBanks != kBanks / 2) odd_at += 16;
  }

  int chunks = 0;       // of a row: whole blocks, so an even number
  int scale_shift = 1;  // log2 of the chunks that share a scale
  int half_chunks = 0;
  // From one pair of rows to the next.
  int code_pitch = 0, scale_pitch = 0;
  int scales_at = 0, odd_at = 0;  // where scales begin, and codes of odd chunks

  __host__ __device__ int TileBytes() const { return odd_at + kQ2Pairs * code_pitch; }
  // One half of the codes with the scales: where it begins, its size, and in it the codes and the
  // scales.
  __host__ __device__ int HalfAt(int parity) const { return parity == 0 ? 0 : scales_at; }
  __host__ __device__ int HalfBytes(int parity) const {
    return parity == 0 ? scales_at + kQ2Pairs * scale_pitch : TileBytes() - scales_at;
  }
  __host__ __device__ int CodesInHalf(int parity) const {
    return parity == 0 ? 0 : odd_at - scales_at;
  }
  __host__ __device__ int ScalesInHalf(int parity) const { return parity == 0 ? scales_at : 0; }
  // Where in its tile pair g's 16 bytes of a chunk are, and its word of scales.
  __host__ __device__ int CodesAt(int pair, int chunk) const {
    return (chunk % 2 == 0 ? 0 : odd_at) + pair * code_pitch + chunk / 2 * kQ2ChunkBytes;
  }
  __host__ __device__ int ScalesAt(int pair, int chunk) const {
    return scales_at + pair * scale_pitch + (chunk >> scale_shift) * 4;
  }
};

// The words of one chunk of a pair of rows, from the chunk's eight bytes of each row in the file
// (low bits first; value i in byte i / 4).
struct Q2ChunkWords {
  uint32_t word[4] = {};
};
__host__ __device__ inline Q2ChunkWords Q2Interleave(const uint8_t* row_g, const uint8_t* row_g8) {
  Q2ChunkWords words;
  for (int byte = 0; byte < 8; ++byte) {
    for (int b = 0; b < 4; ++b) {
      const uint32_t of_g = row_g[byte] >> (2 * b) & 3u, of_g8 = row_g8[byte] >> (2 * b) & 3u;
      words.word[byte / 2] |= (of_g | of_g8 << 2) << (8 * b + byte % 2 * 4);
    }
  }
  return words;
}

}  // namespace fulcrum::cuda
