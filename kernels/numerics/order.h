// The pinned orders of operations: what "the same bits" means. Words here, plain code in oracle.cc,
// fast code in every arm. All arithmetic is IEEE binary32, round to nearest even, subnormals kept,
// no contraction; fma(a, b, c) rounds once.
//
// Common to all. Activations are BF16 values (F16 and F32 inputs are rounded to BF16 once, RNE).
// K is padded with zero weights and zero activations to whole blocks of 128 (q2_0: to whole chunks
// of 32). Every result ends with "+ 0.0f", so a sum that is -0 becomes +0; with that, more zero
// padding of any kind cannot change a bit. A NaN result is stored as 0x7fffffff (F32) or 0x7fff
// (BF16). A BF16 output is rounded once, RNE, from the F32 result.
//
// Segments (fp8 and bf16, every class). Let B = ceil(K / 128) blocks. S is the least power of two
// with ceil(B / S) <= 17, L = ceil(B / S); segment i is blocks [i L, min((i + 1) L, B)). Segment
// sums are added in ascending order: ((s0 + s1) + s2) + ... . K = 5120: 4 x 10 blocks; 6144: 4 x
// 12; 17408: 8 x 17. The bound 17 keeps a K slice of 16 rows near 34 KB, which is what one
// streaming multiprocessor's ring of bulk copies wants, and makes 17408 split evenly.
//
// exact, fp8 and bf16. xs[k] = x[k] * scale(block of k), rounded (bf16: xs = x). Within a segment
// four lanes; lane t owns the k with (k mod 8) / 2 == t and does acc = fma(w[k], xs[k], acc) in
// ascending k from +0, w the unscaled weight. Segment sum = (a0 + a2) + (a1 + a3). (Of every 16 k
// that is 2 t, 2 t + 1, 2 t + 8 and 2 t + 9: what one thread of a tensor-core fragment holds, so
// one resident layout serves this class and mma; the sum is two butterfly steps on a warp.)
//
// exact, q2_0. Each activation row is quantised in chunks of 32 (quantise rule in
// formats/q8_activation.h): int8 q and one F32 scale d8. For chunk c the integer
// s = sum over 32 of (code - 1) * q is exact; term = (d2 * d8 rounded) combined as
// v = fma(d2 * d8, float(s), v). 128 virtual threads: thread t owns chunks t, t + 128, ... in
// ascending order from v = +0. Then lane l of 32: ((v[l] + v[32 + l]) + v[64 + l]) + v[96 + l];
// then a butterfly over the 32 lanes, strides 16, 8, 4, 2, 1. Threads without a chunk hold +0.
//
// mma, fp8 and bf16. Operands are the plain BF16 values of weight (unscaled) and activation. Per
// 128-block a fresh inner accumulator from +0 through 8 tensor-core steps, step t over
// k = 16 t .. 16 t + 15 (tensor_core.h has one step); outer = fma(scale, inner, outer) over blocks
// in ascending order from +0 within a segment (bf16: scale = 1).
//
// blockfold, fp8 and bf16 (CPU). Per 128-block one chain from +0 over pairs of k, in every 16 the
// pairs 0, 4, 1, 5, 2, 6, 3, 7 (lane after lane of exact, whose packing it shares), of a pair the
// odd element first: inner = fma(w[2j+1], x[2j+1], inner), inner = fma(w[2j], x[2j], inner), w
// unscaled; then outer = fma(scale, inner, outer) as in mma. (Odd first is the order of the BF16
// dot-product instruction, which can then serve it where it is present.)
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fulcrum::numerics {

inline constexpr int kBlockK = 128;  // K per weight scale block and per inner sum
inline constexpr int kMaxSegmentBlocks = 17;
inline constexpr int kExactLanes = 4;
inline constexpr int kQ2ChunkK = 32;    // K per activation scale
inline constexpr int kQ2Threads = 128;  // virtual threads of the q2_0 order

constexpr int ExactLane(int64_t k) { return static_cast<int>(k % 8 / 2); }
// The 16 k of a group lane after lane, within a lane ascending: the k at a position of that order.
constexpr int LaneOrderK(int position) {
  return position / 4 * 2 + position % 2 + position % 4 / 2 * 8;
}

constexpr int64_t Blocks(int64_t k) { return (k + kBlockK - 1) / kBlockK; }

// Blocks per segment, a function of K alone. k >= 1.
constexpr int64_t SegmentBlocks(int64_t k) {
  const int64_t blocks = Blocks(k);
  int64_t segments = 1;
  while ((blocks + segments - 1) / segments > kMaxSegmentBlocks) segments *= 2;
  return (blocks + segments - 1) / segments;
}
// Segments that hold at least one block.
constexpr int64_t Segments(int64_t k) {
  return (Blocks(k) + SegmentBlocks(k) - 1) / SegmentBlocks(k);
}
static_assert(SegmentBlocks(5120) == 10 && Segments(5120) == 4);
static_assert(SegmentBlocks(6144) == 12 && Segments(6144) == 4);
static_assert(SegmentBlocks(17408) == 17 && Segments(17408) == 8);
static_assert(SegmentBlocks(2560) == 10 && Segments(2560) == 2);

}  // namespace fulcrum::numerics
