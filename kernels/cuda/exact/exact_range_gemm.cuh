// Class exact for fp8 and bf16 (order.h), several rows: multiply-adds are the time, so every warp
// must have as many of them as any other, and little else to do.
//
// A unit is a K segment of kTiles tiles of 16 weight rows times kColumns columns, one warp's: what
// is made ready of one weight serves kColumns multiply-adds, of one activation 2 kTiles. Units in a
// row are one long line of stages of the ring; it is cut into equal ranges, a warp each. Where a
// cut goes through a unit, one warp does its first part before all else and leaves the
// accumulators, and the next takes them up after all else: nobody waits, and no warp has more than
// its share. A range is no shorter than a unit, so none has more than two parts.
//
// A warp needs no other: it copies weights and activations ahead to a ring of its own, and makes
// F32 of the activations, scaled, once for all of its rows. Units are visited from the last of the
// range to the first; of those whose sums meet, the one that should be visited last waits for the
// words (workspace.cuh) of the others, which are there by then or about to be.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/force_in_register.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/exact/exact_step.cuh"
#include "kernels/cuda/gemm/gemm_params.cuh"
#include "kernels/cuda/gemm/workspace.cuh"

namespace fulcrum::cuda {

inline constexpr int kQuarterK = 2 * kStepK;

// A stage of the ring is a part of a block; the fewer columns, the larger, since asking costs the
// same for all.
template <class Steps, int kTiles, int kColumns>
struct RangeShape {
  static constexpr int kQuarters = kColumns > 4 || !Steps::kScaled ? 2 : 4;  // of a stage
  static constexpr int kStages = kQuarters == 4 ? 2 : 3;
  static constexpr int kQuarterBytes = Steps::kBlockBytes / 4;
  static constexpr int kTileBytes = kQuarters * kQuarterBytes;
  // Of a column: eight of them begin in eight banks.
  static constexpr int kPitch = kQuarters * kQuarterK * 2 + 16;
  static constexpr int kStageBytes = kTiles * kTileBytes + kColumns * kPitch;
  static constexpr int kSteps = 2 * kQuarters;
  static constexpr int kItems = kSteps * kColumns * 4;  // (step, column, lane of the order)
  static constexpr int kWarpBytes = kStages * kStageBytes + kItems * 16;
  static constexpr int kSums = 2 * kTiles * kColumns;  // accumulators of a thread
  static constexpr int kOutputs = kSums / 4;           // outputs of a thread
  static_assert(kSums % 4 == 0 && 4 % kQuarters == 0 && kItems % 32 == 0);
  // Warps of a thread block, which has a multiprocessor for itself, at most: what registers allow,
  // which code for sm_90 and later needs fewer of; and few columns leave so little to do that fewer
  // warps, with longer ranges, are faster.
  static constexpr int Warps(bool from_sm_90) {
    if (!Steps::kScaled || kColumns > 8) return from_sm_90 ? 12 : 8;
    return kColumns > 4 && from_sm_90 ? 16 : kColumns > 2 ? 12 : 8;
  }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kFromSm90 = false;
#else
inline constexpr bool kFromSm90 = true;
#endif

struct RangePlan {
  int first_tile, tile_groups;  // of the launch's part of the rows; groups of kTiles tiles
  int column_groups;
  int unit_stages, range_stages;  // unit_stages <= range_stages
  int ranges;
  uint32_t* carries;  // [range][accumulator][thread]: what its last unit's first part came to
  uint32_t* sums;     // [tile group][column group][segment][output][thread]
};

// A thread's lane of the order, and its row of a tile's first eight. Not as a fragment has them: of
// 16 bytes a lane what lanes i and i ^ 1 share takes two cycles of the multiprocessor, what lanes i
// and i ^ 4 share four.
inline constexpr int kOrderLaneStride = 2;
__device__ __forceinline__ int OrderLane(int lane) { return lane / kOrderLaneStride % 4; }
__device__ __forceinline__ int RowOf(int lane) { return lane / 8 * 2 + lane % 2; }

template <class Steps, int kTiles, int kColumns>
class ExactRangeGemm {
  using Shape = RangeShape<Steps, kTiles, kColumns>;

 public:
  __device__ __forceinline__ ExactRangeGemm(const GemmParams& product, const RangePlan& range_plan,
                                            uint32_t shared, int of_range)
      : p(product),
        plan(range_plan),
        lane(static_cast<int>(threadIdx.x) % 32),
        ring(shared),
        range(of_range),
        first_unit(range * plan.range_stages / plan.unit_stages) {}

  __device__ __forceinline__ void Run() {
    int unit = (End() - 1) / plan.unit_stages;
    asking.unit = unit + 1;
    Aim();
#pragma unroll 1
    for (int i = 0; i < Shape::kStages; ++i) Ask(i);
    int stage = 0;
    for (; unit >= first_unit; --unit) {
      int part, to;
      float scale;
      float sums[Shape::kSums] = {};
      {
        const Unit at(*this, unit);
        part = at.from;
        to = at.to;
        scale = Scale(at);
        if (part > 0) LoadCarry(range - 1, sums);
      }
#pragma unroll 1
      for (; part < to; ++part) {
        AsyncWait<Shape::kStages - 1>();
        __syncwarp();
        const uint32_t here = ring + stage * Shape::kStageBytes;
        ScaleActivations(
            here + kTiles * Shape::kTileBytes,
            Steps::kScaled ? __shfl_sync(~0u, scale, part * Shape::kQuarters / 4) : 1.0f);
        __syncwarp();
        Multiply(here, sums);
        __syncwarp();
        Ask(stage);
        stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      }
      if (End() < (unit + 1) * plan.unit_stages) {
        StoreWords(CarryAt(range), 32, sums);
      } else {
        Finish(unit, sums);
      }
    }
  }

 private:
  __device__ __forceinline__ int End() const {  // of the range, a stage
    return min((range + 1) * plan.range_stages,
               plan.tile_groups * p.segments * plan.column_groups * plan.unit_stages);
  }
  // Where a unit is, and this range's part of it.
  struct Unit {
    int tile_group, column_group, segment;
    int from, to;  // stages
    __device__ __forceinline__ Unit(const ExactRangeGemm& r, int unit) {
      column_group = unit % r.plan.column_groups;
      const int rest = unit / r.plan.column_groups;
      segment = rest % r.p.segments;
      tile_group = rest / r.p.segments;
      from = max(r.range * r.plan.range_stages - unit * r.plan.unit_stages, 0);
      // Of all segments only the last can be shorter.
      to = min(min(r.End() - unit * r.plan.unit_stages, r.plan.unit_stages),
               (r.p.blocks - segment * r.p.segment_blocks) * (4 / Shape::kQuarters));
    }
  };
  __device__ __forceinline__ int Tile(const Unit& at) const {
    return plan.first_tile + at.tile_group * kTiles;
  }

  // Aims the copies at the next unit that has a part here, if there is one.
  __device__ __forceinline__ void Aim() {
    while (--asking.unit >= first_unit) {
      const Unit at(*this, asking.unit);
      if (at.from >= at.to) continue;
      const int first_block = at.segment * p.segment_blocks, quarter = at.from * Shape::kQuarters;
      asking.left = at.to - at.from;
      asking.of_block = quarter % 4;
      asking.weights = TileCodes(p, Tile(at), Steps::kBlockBytes) +
                       int64_t{first_block + quarter / 4} * kPanelTiles * Steps::kBlockBytes +
                       asking.of_block * Shape::kQuarterBytes + lane * 16;
      asking.first_column = at.column_group * kColumns;
      asking.k = first_block * kBlockK + quarter * kQuarterK;
      return;
    }
  }

  // Asks for the next stage, if there is one.
  __device__ __forceinline__ void Ask(int stage) {
    if (asking.unit >= first_unit) {
      const uint32_t to = ring + stage * Shape::kStageBytes;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int part = 0; part < Shape::kTileBytes; part += 512) {
          AsyncCopy16(to + i * Shape::kTileBytes + part + lane * 16,
                      asking.weights + i * Steps::kBlockBytes + part);
        }
      }
      // Sixteen bytes of a column each; lane parts and constants apart, or every address of this
      // would be kept in registers.
      constexpr int kPieces = Shape::kQuarters * kQuarterK / 8, kAtOnce = 32 / kPieces;
      const uint32_t to_x =
          to + kTiles * Shape::kTileBytes + lane / kPieces * Shape::kPitch + lane % kPieces * 16;
      const uint16_t* const from_x = p.x + asking.k + lane % kPieces * 8;
      const int column = asking.first_column + lane / kPieces;
#pragma unroll
      for (int first = 0; first < kColumns; first += kAtOnce) {
        if (kAtOnce > kColumns && lane / kPieces >= kColumns) continue;
        AsyncCopy16(to_x + first * Shape::kPitch,
                    from_x + min(column + first, p.m - 1) * p.x_pitch);
      }
      asking.k += Shape::kQuarters * kQuarterK;
      asking.weights += Shape::kTileBytes;
      asking.of_block += Shape::kQuarters;
      if (asking.of_block == 4) {
        asking.of_block = 0;
        asking.weights += (kPanelTiles - 1) * Steps::kBlockBytes;
      }
      if (--asking.left == 0) Aim();
    }
    AsyncCommit();
  }

  __device__ __forceinline__ float Scale(const Unit& at) const {  // of block `lane` of the segment
    if constexpr (!Steps::kScaled) return 1.0f;
    const int block = at.segment * p.segment_blocks + lane;
    const int row = Tile(at) * kTileRows / kScaleRows;
    return block < p.blocks ? __ldg(p.scales + int64_t{row} * p.blocks + block) : 0.0f;
  }

  __device__ __forceinline__ void ScaleActivations(uint32_t from, float scale) const {
    const uint32_t to = Activations() + lane * 16;
    const uint32_t at = from + lane / 4 % kColumns * Shape::kPitch +
                        lane / (4 * kColumns) * kStepK * 2 + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < Shape::kItems / 32; ++i) {  // eight columns, or fewer of several steps
      const uint32_t here = at + 8 * i % kColumns * Shape::kPitch + 8 * i / kColumns * kStepK * 2;
      SharedStore(to + i * 512,
                  Scaled<Steps::kScaled>(SharedLoad32(here), SharedLoad32(here + 16), scale));
    }
  }

  // Where the stage's activations are as F32, scaled.
  __device__ __forceinline__ uint32_t Activations() const {
    return ring + Shape::kStages * Shape::kStageBytes;
  }
  __device__ __forceinline__ void Multiply(uint32_t stage, float (&sums)[Shape::kSums]) const {
    int lane = this->lane;
    ForceInRegister(lane);  // or its places would be kept in registers
    const uint32_t weights = stage + (4 * RowOf(lane) + OrderLane(lane)) * 16;
    uint32_t xs = Activations() + OrderLane(lane) * 16;
    Steps next[kTiles];
    const auto load = [&](int step) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) next[i].LoadShared(weights + i * Shape::kTileBytes, step);
    };
    load(0);
#pragma unroll 1
    for (int first = 0; first < Shape::kSteps; first += Steps::kSteps) {
#pragma unroll
      for (int step = 0; step < Steps::kSteps; ++step, xs += kColumns * 64) {
        StepPairs pairs[kTiles];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) pairs[i] = next[i].Step(step);
        if (step + 1 == Steps::kSteps)
          load(min(first + Steps::kSteps, Shape::kSteps - Steps::kSteps));
        // Two columns at a time, the next two on their way.
        constexpr int kAtOnce = kColumns < 2 ? kColumns : 2;
        float4 x[kAtOnce], now[kAtOnce];
        const auto load_x = [&](int first_column) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) x[i] = SharedLoadF32(xs + (first_column + i) * 64);
        };
        load_x(0);
#pragma unroll
        for (int c = 0; c < kColumns; c += kAtOnce) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) now[i] = x[i];
          if (c + kAtOnce < kColumns) load_x(c + kAtOnce);
#pragma unroll
          for (int i = 0; i < kAtOnce * kTiles; ++i) {
            float* const of = sums + i / kAtOnce * 2 * kColumns + c + i % kAtOnce;
            ExactStep(pairs[i / kAtOnce], now[i % kAtOnce], of[0], of[kColumns]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ uint32_t* CarryAt(int range) const {
    return plan.carries + int64_t{range} * Shape::kSums * 32 + lane;
  }
  __device__ __forceinline__ void LoadCarry(int range, float (&sums)[Shape::kSums]) const {
    uint32_t* const carry = CarryAt(range);
    while (!TryLoadWords(carry, 32, sums)) {
    }
    ResetWords<Shape::kSums>(carry, 32);
    __syncwarp();
  }

  // Of the segments of some outputs, the first of which is unit `first`, the one that should be
  // done last: the nearest to the begin of its range, from the other end of which all warps set
  // out. Who waits so for another cannot close a circle: the other, if it waits too, does so
  // further from the begin.
  __device__ __forceinline__ int LastSegment(int first) const {
    int last = 0, nearest = INT_MAX;
    for (int segment = 0; segment < p.segments; ++segment) {
      const int begin = (first + segment * plan.column_groups) * plan.unit_stages;
      const int range_begin = begin / plan.range_stages * plan.range_stages;
      // A unit that is cut is done where it ends, before all else from that end.
      const bool cut = range_begin + plan.range_stages < begin + plan.unit_stages;
      const int from_begin = cut ? 0 : begin - range_begin;
      if (from_begin <= nearest) {
        nearest = from_begin;
        last = segment;
      }
    }
    return last;
  }

  // Of the four threads that hold a sum each keeps its share: output j of a thread is accumulator
  // 4 j + its lane of the order. Who is last adds them all, in ascending order.
  __device__ __forceinline__ void Finish(int unit, const float (&sums)[Shape::kSums]) const {
    int lane = this->lane;
    ForceInRegister(lane),
        ForceInRegister(unit);  // or all of this end's addresses would be made ahead
    const Unit at(*this, unit);
    float own[Shape::kOutputs];
#pragma unroll
    for (int i = 0; i < Shape::kSums; ++i) {
      const float sum = AddLanes<kOrderLaneStride>(sums[i]);
      if (OrderLane(lane) == i % 4) own[i / 4] = sum;
    }
    constexpr int kWords = Shape::kOutputs * 32;
    uint32_t* const partials =
        plan.sums + lane +
        (int64_t{at.tile_group} * plan.column_groups + at.column_group) * p.segments * kWords;
    const int last = LastSegment(unit - at.segment * plan.column_groups);
    if (at.segment != last) {
      StoreWords(partials + at.segment * kWords, 32, own);
      return;
    }
    float sum[Shape::kOutputs] = {};
    constexpr int kTogether = 3;  // segments asked for together
    for (int first = 0; first < p.segments; first += kTogether) {
      float others[kTogether][Shape::kOutputs];
      bool arrived = false;
      while (!arrived) {
        arrived = true;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (first + i >= p.segments || first + i == last) continue;
          const bool here = TryLoadWords(partials + (first + i) * kWords, 32, others[i]);
          arrived = arrived && here;
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + i >= p.segments) continue;
        const bool here = first + i == last;
        if (!here) ResetWords<Shape::kOutputs>(partials + (first + i) * kWords, 32);
#pragma unroll
        for (int j = 0; j < Shape::kOutputs; ++j) {
          sum[j] = __fadd_rn(sum[j], here ? own[j] : others[i][j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < Shape::kOutputs; ++j) {
      const int i = 4 * j + OrderLane(lane), row = i / kColumns;
      const int64_t n =
          int64_t{Tile(at)} * kTileRows + row / 2 * kTileRows + row % 2 * 8 + RowOf(lane);
      const int m = at.column_group * kColumns + i % kColumns;
      if (n < p.n && m < p.m) StoreResult(p, m, n, sum[j]);
    }
    __syncwarp();
  }

  const GemmParams& p;
  const RangePlan& plan;
  const int lane;
  const uint32_t ring;
  const int range, first_unit;
  struct {
    int unit, left, of_block, first_column, k;
    const std::byte* weights;
  } asking;
};

}  // namespace fulcrum::cuda
