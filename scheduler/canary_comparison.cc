// See canary_comparison.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/canary_comparison.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace fulcrum {
namespace {

constexpr int kBucketEnds[] = {1, 2, 4, 8, 16, 32, 128, 512, 2048};
constexpr size_t kRecentTimes = 512;
// Of a cell that shares its row with many: rows are made while batches wait.
constexpr size_t kLeastTimes = 4;

// Evidence of groups in the order in which the canary met them counts 1/2, 1/6, 1/12, ... of its
// value: the weights sum to 1, however many groups there will be, so the weighted sum is evidence
// too.
double LogWeight(int rank) { return -std::log(static_cast<double>(rank) * (rank + 1)); }

// 0 of none. Changes their order.
double Quantile(std::vector<float>& values, double q) {
  if (values.empty()) return 0;
  const auto at =
      std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

}  // namespace

RowBucket BucketOf(int rows) {
  int first = 1;
  for (const int last : kBucketEnds) {
    if (rows <= last) return {first, last};
    first = last + 1;
  }
  return {first, kAnyRows};
}

std::string Name(RowBucket bucket) {
  if (bucket.last == kAnyRows) return absl::StrFormat("%d+", bucket.first);
  if (bucket.last == bucket.first) return absl::StrFormat("%d", bucket.first);
  return absl::StrFormat("%d-%d", bucket.first, bucket.last);
}

void CanaryComparison::Side::Add(double value) {
  ++batches;
  seconds += value;
  if (recent.size() < kRecentTimes) {
    recent.push_back(static_cast<float>(value));
    return;
  }
  recent[next] = static_cast<float>(value);
  next = (next + 1) % kRecentTimes;
}

void CanaryComparison::Side::CopyTo(size_t count, std::vector<float>& out) const {
  for (size_t i = recent.size() - count; i < recent.size(); ++i) {
    out.push_back(recent[(next + i) % recent.size()]);
  }
}

CanaryComparison::CanaryComparison(double p50_limit, double p99_limit)
    : p50_limit_(p50_limit), p99_limit_(p99_limit) {}

void CanaryComparison::Add(const ComparisonCell& cell, const Arm* canary, const Arm* asked,
                           double kernel_seconds, absl::Time at) {
  auto found = cells_.find(cell);
  if (found == cells_.end()) {
    if (cells_.size() >= kMostCells) return;
    std::unique_ptr<Group>& group = groups_[{cell.family, cell.step, BucketOf(cell.rows)}];
    if (group == nullptr) group = std::make_unique<Group>();
    found = cells_
                .emplace(cell, std::make_unique<Cell>(
                                   Cell{.group = group.get(),
                                        .p50 = QuantileBlocks(kMedian, p50_limit_, kLoadWindow),
                                        .p99 = QuantileBlocks(kP99, p99_limit_, kLoadWindow)}))
                .first;
    group->cells.push_back(found->second.get());
  }
  Cell& c = *found->second;
  Group& group = *c.group;
  const bool is_canary = canary != nullptr;
  if (is_canary) {
    if (group.rank == 0) group.rank = ++ranks_;
    group.canary = canary;
    c.canary.Add(kernel_seconds);
  } else {
    group.asked = asked;
    group.control = cell.weights.front().control;
    c.control.Add(kernel_seconds);
  }
  bool judged = false;
  if (const auto outcome = c.p50.Add(is_canary, kernel_seconds, at); outcome.has_value()) {
    group.p50.Add(*outcome);
    judged = true;
  }
  if (const auto outcome = c.p99.Add(is_canary, kernel_seconds, at); outcome.has_value()) {
    group.p99.Add(*outcome);
    judged = true;
  }
  if (judged && !finding_.has_value()) Judge();
}

void CanaryComparison::Judge() {
  const double threshold = std::log(2 / kFalseAlarms);
  for (const bool median : {true, false}) {
    const double limit = median ? p50_limit_ : p99_limit_;
    if (!std::isfinite(limit)) continue;
    double sum = 0, largest = -INFINITY;
    const GroupKey* worst = nullptr;
    for (const auto& [key, group] : groups_) {
      if (group->rank == 0) continue;
      const double log_value =
          (median ? group->p50 : group->p99).log_value() + LogWeight(group->rank);
      sum += std::exp(std::min(log_value, 700.0));
      if (log_value > largest) {
        largest = log_value;
        worst = &key;
      }
    }
    if (std::log(sum) < threshold) continue;
    const Row row = RowOf(*worst, *groups_.at(*worst));
    const double control = median ? row.control_p50 : row.control_p99;
    const double canary = median ? row.canary_p50 : row.canary_p99;
    finding_ = SlowerFinding{absl::StrFormat(
        "kernel %s of %s %s, %d to %d rows: canary %.1f us, control %.1f us, ratio %.3f (limit "
        "%g); %d against %d batches, %s against %s; evidence 10^%.1f, threshold 10^%.1f",
        median ? "p50" : "p99", Name(row.family), Name(row.step), row.bucket.first, row.bucket.last,
        canary * 1e6, control * 1e6, control > 0 ? canary / control : 0.0, limit,
        row.canary_batches, row.control_batches, row.canary_ran->name,
        row.control_ran == nullptr ? std::string_view("?") : row.control_ran->name,
        std::log(sum) / std::log(10.0), threshold / std::log(10.0))};
    return;
  }
}

CanaryComparison::Row CanaryComparison::RowOf(const GroupKey& key, const Group& group) {
  const auto& [family, step, bucket] = key;
  Row row = {.family = family,
             .step = step,
             .bucket = bucket,
             .control_asked = group.asked,
             .control_ran = group.control,
             .canary_ran = group.canary,
             .p50_evidence = group.p50.value(),
             .p99_evidence = group.p99.value()};
  const auto cells = static_cast<size_t>(std::count_if(
      group.cells.begin(), group.cells.end(), [](const Cell* cell) { return cell->comparable(); }));
  const size_t most = std::max(kLeastTimes, kRecentTimes / std::max<size_t>(cells, 1));
  std::vector<float> control, canary;
  for (const Cell* cell : group.cells) {
    if (!cell->comparable()) continue;
    row.control_batches += cell->control.batches;
    row.canary_batches += cell->canary.batches;
    row.control_seconds += cell->control.seconds;
    row.canary_seconds += cell->canary.seconds;
    const size_t both = std::min({cell->control.recent.size(), cell->canary.recent.size(), most});
    cell->control.CopyTo(both, control);
    cell->canary.CopyTo(both, canary);
  }
  row.control_p50 = Quantile(control, 0.5);
  row.control_p99 = Quantile(control, 0.99);
  row.canary_p50 = Quantile(canary, 0.5);
  row.canary_p99 = Quantile(canary, 0.99);
  return row;
}

std::vector<CanaryComparison::Row> CanaryComparison::Rows() const {
  std::vector<Row> rows;
  for (const auto& [key, group] : groups_) {
    if (group->rank > 0) rows.push_back(RowOf(key, *group));
  }
  return rows;
}

int64_t CanaryComparison::comparable(bool canary) const {
  int64_t batches = 0;
  for (const auto& [key, cell] : cells_) {
    if (cell->comparable()) batches += (canary ? cell->canary : cell->control).batches;
  }
  return batches;
}

}  // namespace fulcrum
