// Class exact for fp8 and bf16 (order.h), several rows. Multiply-adds take most of the time, so all
// warps must have equally many of them and little other work.
//
// A unit is a K segment of kTiles tiles of 16 weight rows by kColumns columns. One decoded weight
// serves kColumns multiply-adds, one scaled activation 2 kTiles. All units together are one line of
// stages of the ring, which is cut into equal ranges, one a warp. Where a cut goes through a unit,
// one warp computes the unit's first part before its other work and stores the accumulators (the
// carry); the next warp continues from them after its other work. So no warp waits long and none
// has more than its share. A range is at least as long as a unit, so a unit has at most two parts.
//
// Each warp copies weights and activations into a ring of its own and converts the activations to
// scaled F32 once for all of its rows. It visits its units from the last to the first. Of the
// segments of one output, the one that is computed last adds up the others, which it reads from the
// workspace (workspace.cuh).
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

// A stage of the ring is a part of a block. With fewer columns it is larger, since the cost of
// starting its copies does not depend on its size.
template <class Steps, int kTiles, int kColumns>
struct RangeShape {
  static constexpr int kQuarters = kColumns > 4 || !Steps::kScaled ? 2 : 4;  // of a stage
  static constexpr int kStages = kQuarters == 4 ? 2 : 3;
  static constexpr int kQuarterBytes = Steps::kBlockBytes / 4;
  static constexpr int kTileBytes = kQuarters * kQuarterBytes;
  // Bytes of a column; eight columns begin in eight different banks.
  static constexpr int kPitch = kQuarters * kQuarterK * 2 + 16;
  static constexpr int kStageBytes = kTiles * kTileBytes + kColumns * kPitch;
  static constexpr int kSteps = 2 * kQuarters;
  static constexpr int kItems = kSteps * kColumns * 4;  // (step, column, lane of the order)
  static constexpr int kWarpBytes = kStages * kStageBytes + kItems * 16;
  static constexpr int kSums = 2 * kTiles * kColumns;  // accumulators of a thread
  static constexpr int kOutputs = kSums / 4;           // outputs of a thread
  static_assert(kSums % 4 == 0 && 4 % kQuarters == 0 && kItems % 32 == 0);
  // The most warps of a thread block, which has a multiprocessor to itself. Registers limit it;
  // code for sm_90 and later needs fewer of them. With few columns a warp has so little work that
  // fewer warps with longer ranges are faster.
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
  int first_tile, tile_groups;  // first tile of this launch; groups of kTiles tiles
  int column_groups;
  int unit_stages, range_stages;  // unit_stages <= range_stages
  int ranges;
  uint32_t* carries;  // [range][accumulator][thread]: of the first part of a cut unit
  uint32_t* sums;     // [tile group][column group][segment][output][thread]
};

// A thread's lane of the order, and its row among a tile's first eight. This differs from a
// tensor-core fragment: a load of 16 bytes a lane takes two cycles of the multiprocessor where
// lanes i and i ^ 1 read the same address, and four where lanes i and i ^ 4 do.
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
  __device__ __forceinline__ int End() const {  // end of the range, a stage
    return min((range + 1) * plan.range_stages,
               plan.tile_groups * p.segments * plan.column_groups * plan.unit_stages);
  }
  // The place of a unit, and this range's part of it.
  struct Unit {
    int tile_group, column_group, segment;
    int from, to;  // stages
    __device__ __forceinline__ Unit(const ExactRangeGemm& r, int unit) {
      column_group = unit % r.plan.column_groups;
      const int rest = unit / r.plan.column_groups;
      segment = rest % r.p.segments;
      tile_group = rest / r.p.segments;
      from = max(r.range * r.plan.range_stages - unit * r.plan.unit_stages, 0);
      // Only the last segment can be shorter.
      to = min(min(r.End() - unit * r.plan.unit_stages, r.plan.unit_stages),
               (r.p.blocks - segment * r.p.segment_blocks) * (4 / Shape::kQuarters));
    }
  };
  __device__ __forceinline__ int Tile(const Unit& at) const {
    return plan.first_tile + at.tile_group * kTiles;
  }

  // Sets the copies to the next unit that has a part in this range, if there is one.
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

  // Starts the copies of the next stage, if there is one.
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
      // Each copy is 16 bytes of a column. Parts that depend on the lane are separate from
      // constants; otherwise the compiler keeps every address in a register.
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

  // The scale of block `lane` of the segment.
  __device__ __forceinline__ float Scale(const Unit& at) const {
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
    for (int i = 0; i < Shape::kItems / 32; ++i) {  // eight columns, or fewer of more steps
      const uint32_t here = at + 8 * i % kColumns * Shape::kPitch + 8 * i / kColumns * kStepK * 2;
      SharedStore(to + i * 512,
                  Scaled<Steps::kScaled>(SharedLoad32(here), SharedLoad32(here + 16), scale));
    }
  }

  // Address of the stage's scaled F32 activations.
  __device__ __forceinline__ uint32_t Activations() const {
    return ring + Shape::kStages * Shape::kStageBytes;
  }
  __device__ __forceinline__ void Multiply(uint32_t stage, float (&sums)[Shape::kSums]) const {
    int lane = this->lane;
    ForceInRegister(lane);  // otherwise addresses made from it are kept in registers
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
        // Two columns at a time, while the next two are loaded.
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

  // The segment that adds up the others, of the segments whose first one is unit `first`: the one
  // nearest to the begin of its range, because all warps start at the other end. Waiting cannot
  // form a circle: a warp that is waited for can itself wait only for a segment that is further
  // from the begin.
  __device__ __forceinline__ int LastSegment(int first) const {
    int last = 0, nearest = INT_MAX;
    for (int segment = 0; segment < p.segments; ++segment) {
      const int begin = (first + segment * plan.column_groups) * plan.unit_stages;
      const int range_begin = begin / plan.range_stages * plan.range_stages;
      // A cut unit ends at the begin of the next range.
      const bool cut = range_begin + plan.range_stages < begin + plan.unit_stages;
      const int from_begin = cut ? 0 : begin - range_begin;
      if (from_begin <= nearest) {
        nearest = from_begin;
        last = segment;
      }
    }
    return last;
  }

  // Each of the four threads that hold a sum keeps its share: output j of a thread is accumulator 4
  // j + its lane of the order. The last segment adds them all in ascending order.
  __device__ __forceinline__ void Finish(int unit, const float (&sums)[Shape::kSums]) const {
    int lane = this->lane;
    ForceInRegister(lane),
        ForceInRegister(unit);  // otherwise all addresses below are computed ahead
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
    constexpr int kTogether = 3;  // segments loaded at a time
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
