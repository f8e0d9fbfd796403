// What one launch of a CPU arm works on: threads, scratch, and how rows and columns are cut into
// work. Only N is split over threads, so the cut never changes an order of operations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/host_buffer.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ladder/arm.h"

namespace fulcrum::cpu {

// One thread's scratch, about 0.5 MB: all of it is reused from item to item and stays in L2.
struct alignas(64) ThreadScratch {
  static constexpr int kChunkK = 256;              // K decoded at a time
  static constexpr int kMicroRows = 32;            // rows decoded at a time
  float panel[kMaxDecodeRows * kMaxSegmentK];      // scaled activations of one segment
  float decoded[kMicroRows * kChunkK];             // weights as F32, [k][row]
  float lanes[4 * kMaxDecodeRows * kBlockRows];    // running sums by lane of the order, or by row
  float total[kMaxDecodeRows * kBlockRows];        // sums over segments, [column][row]
  uint8_t expanded[kTileRows * kMaxSegmentK * 2];  // the last, narrow tile made 16 rows wide
};

// ArmArgs::context of every CPU arm. Made by the backend, used by one launch at a time.
struct CpuContext {
  ThreadPool* pool = nullptr;
  std::vector<HostBuffer> scratch;  // one ThreadScratch a thread
  HostBuffer columns;               // the activations as the arm wants them

  ThreadScratch& thread_scratch(int thread) const {
    return *scratch[static_cast<size_t>(thread)].as<ThreadScratch>();
  }
  // Grows `columns`; called at load, so that launches allocate nothing.
  absl::Status ReserveColumns(const WeightSpec& spec);
  static size_t ColumnBytes(const WeightSpec& spec);
};

// Activation columns cut into runs of nearly equal width, none wider than the arm's register tile.
struct ColumnRuns {
  int columns = 1;
  int count = 1;

  static ColumnRuns Of(int columns, int max_width) {
    return {columns, (columns + max_width - 1) / max_width};
  }
  int first(int run) const { return columns * run / count; }
  int width(int run) const { return first(run + 1) - first(run); }
};

// Rows cut into items: whole blocks of 128 when there are plenty, else parts of a block, so that
// threads finish together.
struct RowItems {
  int64_t rows = 0;
  int item_tiles = kTilesPerBlock;

  RowItems(int64_t n, int threads) : rows(n) {
    const int64_t blocks = (n + kBlockRows - 1) / kBlockRows;
    while (item_tiles > 2 && threads > 1 && blocks * kTilesPerBlock / item_tiles < 4 * threads) {
      item_tiles /= 2;
    }
  }
  int64_t count() const { return (rows + item_tiles * kTileRows - 1) / (item_tiles * kTileRows); }
  int64_t block(int64_t item) const { return item * item_tiles / kTilesPerBlock; }
  int first_tile(int64_t item) const {
    return static_cast<int>(item * item_tiles % kTilesPerBlock);
  }
  // One past the last tile of the item within its block.
  int end_tile(int64_t item) const {
    const int64_t tiles = (rows - block(item) * kBlockRows + kTileRows - 1) / kTileRows;
    return static_cast<int>(std::min<int64_t>(first_tile(item) + item_tiles, tiles));
  }
};

// The launch as its items see it.
struct Job {
  const CpuWeight* weight;
  ArmArgs args;
  ColumnRuns runs;
  RowItems items;
  int threads;         // that work on the items
  std::byte* columns;  // CpuContext::columns
};

}  // namespace fulcrum::cpu
