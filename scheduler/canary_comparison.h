// Control against canary, like with like: batches are compared within a cell, evidence is gathered
// and shown by family and M bucket. Not thread-safe, no clock: canary.h feeds it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "kernels/ladder/arm.h"
#include "kernels/types.h"
#include "scheduler/exceedance.h"

namespace fulcrum {

// Ranges of rows by which comparisons are listed: 1, 2, 3-4, 5-8, 9-16, 17-32, 33-128, ...
struct RowBucket {
  int first = 0, last = 0;
  friend bool operator==(const RowBucket&, const RowBucket&) = default;
  friend bool operator<(const RowBucket& a, const RowBucket& b) { return a.first < b.first; }
};
RowBucket BucketOf(int rows);
std::string Name(RowBucket bucket);  // "1", "5-8", "2049+"

// Batches of equal cells do the same work: as many rows through weights of the same shapes. The
// control's arms are part of it, so that what an unassigned caller's policy ran is not taken for
// what the canary's callers would have got.
struct ComparisonCell {
  struct Weight {
    WeightFormat format;
    int64_t n, k;
    const Arm* control;  // the arm that ran, or that the live levers would have run
    friend bool operator==(const Weight&, const Weight&) = default;
    template <class H>
    friend H AbslHashValue(H h, const Weight& w) {
      return H::combine(std::move(h), w.format, w.n, w.k, w.control);
    }
  };
  const void* device = nullptr;
  Family family = Family::kOther;  // of the first weight
  Step step = Step::kDecode;
  DType output_type = DType::kBf16;
  int rows = 0;
  absl::InlinedVector<Weight, 4> weights = {};

  friend bool operator==(const ComparisonCell&, const ComparisonCell&) = default;
  template <class H>
  friend H AbslHashValue(H h, const ComparisonCell& c) {
    return H::combine(std::move(h), c.device, c.family, c.step, c.output_type, c.rows, c.weights);
  }
};

// A breach: evidence beyond the threshold.
struct SlowerFinding {
  std::string text;  // which quantile, family and rows, with the figures
};

class CanaryComparison {
 public:
  // The false-alarm bound of a whole canary: both quantiles, all families and buckets, for as long
  // as it runs. Each quantile may spend half of it.
  static constexpr double kFalseAlarms = 0.01;
  // Batches of a cell further apart are not compared.
  static constexpr absl::Duration kLoadWindow = absl::Seconds(10);
  // Cells kept; batches of further ones are not compared.
  static constexpr size_t kMostCells = 4096;

  // Limits as in CanaryGuards; infinite: that quantile is not guarded.
  CanaryComparison(double p50_limit, double p99_limit);

  // `canary` is the arm of the first weight that the canary's side ran; null on the control's side.
  // `asked` is what the control's levers asked for where that could not run, else null.
  void Add(const ComparisonCell& cell, const Arm* canary, const Arm* asked, double kernel_seconds,
           absl::Time at);
  // Set once, at the first breach.
  const std::optional<SlowerFinding>& finding() const { return finding_; }

  // One row of the table: a family, step and bucket. Figures are of its cells that both sides met.
  // Quantiles are of as many recent batches of either side in every one of them, so that sides that
  // meet shapes in other proportions still compare like with like.
  struct Row {
    Family family = Family::kOther;
    Step step = Step::kDecode;
    RowBucket bucket;
    const Arm *control_asked = nullptr, *control_ran = nullptr, *canary_ran = nullptr;
    int64_t control_batches = 0, canary_batches = 0;
    double control_seconds = 0, canary_seconds = 0;  // the sum over the batches
    double control_p50 = 0, control_p99 = 0, canary_p50 = 0, canary_p99 = 0;  // seconds; 0: unknown
    double p50_evidence = 1, p99_evidence = 1;  // against "no slower than the limit"
  };
  // Buckets that the canary met, by family, step and rows.
  std::vector<Row> Rows() const;
  // Comparable batches of a side: of cells that both sides met.
  int64_t comparable(bool canary) const;

 private:
  using GroupKey = std::tuple<Family, Step, RowBucket>;
  // One side of a cell, for the table alone.
  struct Side {
    int64_t batches = 0;
    double seconds = 0;
    std::vector<float> recent = {};
    size_t next = 0;  // where in `recent` the oldest is, once it is full
    void Add(double value);
    // The newest `count` of them.
    void CopyTo(size_t count, std::vector<float>& out) const;
  };
  struct Cell;
  struct Group {
    int rank = 0;  // 1 for the first group that the canary met; weighs its evidence
    const Arm *asked = nullptr, *control = nullptr, *canary = nullptr;
    std::vector<const Cell*> cells = {};
    Evidence p50{kMedian.null_mean()}, p99{kP99.null_mean()};
  };
  struct Cell {
    Group* group = nullptr;
    Side control = {}, canary = {};
    QuantileBlocks p50, p99;
    bool comparable() const { return control.batches > 0 && canary.batches > 0; }
  };
  void Judge();
  static Row RowOf(const GroupKey& key, const Group& group);

  const double p50_limit_, p99_limit_;
  std::map<GroupKey, std::unique_ptr<Group>> groups_;
  absl::flat_hash_map<ComparisonCell, std::unique_ptr<Cell>> cells_;
  int ranks_ = 0;
  std::optional<SlowerFinding> finding_;
};

}  // namespace fulcrum
