// Counting and merging.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench_recorder.h"

#include "client/cli/names.h"
#include "client/cpp/status.h"

namespace fulcrum::cli {
namespace {

template <typename Key>
void Add(std::map<Key, int64_t>& into, const std::map<Key, int64_t>& from) {
  for (const auto& [key, count] : from) into[key] += count;
}

}  // namespace

void Tally::Merge(const Tally& other) {
  latency.Merge(other.latency);
  calls += other.calls;
  calls_in_window += other.calls_in_window;
  rows += other.rows;
  launches += other.launches;
  batch_by_rows += other.batch_by_rows;
  for (size_t i = 0; i < stage_seconds.size(); ++i) stage_seconds[i] += other.stage_seconds[i];
  Add(arms, other.arms);
  Add(classes, other.classes);
  Add(close_reasons, other.close_reasons);
  Add(errors, other.errors);
  Add(equal_to, other.equal_to);
  epochs.insert(other.epochs.begin(), other.epochs.end());
  if (first_error.empty()) first_error = other.first_error;
  error_count += other.error_count;
  verified += other.verified;
  mismatches += other.mismatches;
  unverified += other.unverified;
}

void Recorder::Ok(size_t caller, const Reply& reply, const v1::ProjectResponse& response) {
  const v1::Provenance& provenance = response.provenance();
  const v1::StageTimes& stages = provenance.stages();
  Cell& cell = cells_[caller % cells_.size()];
  absl::MutexLock lock(&cell.mu);
  Tally& tally = cell.tally;
  tally.latency.Record(absl::ToInt64Nanoseconds(reply.latency));
  tally.calls += 1;
  tally.calls_in_window += reply.in_window;
  tally.rows += reply.rows;
  const auto rows = static_cast<double>(reply.rows);
  if (provenance.batch_rows() > 0) tally.launches += rows / provenance.batch_rows();
  tally.batch_by_rows += rows * provenance.batch_rows();
  const double seconds[] = {stages.admit(),   stages.queue(),  stages.gather(),
                            stages.copy_in(), stages.kernel(), stages.copy_out()};
  for (size_t i = 0; i < kStageNames.size(); ++i) tally.stage_seconds[i] += seconds[i];
  for (const v1::ShardOutput& output : response.outputs()) {
    ++tally.arms[output.arm()];
    ++tally.classes[Word(output.numerics())];
  }
  ++tally.close_reasons[Word(provenance.close_reason())];
  tally.epochs.insert(provenance.lever_epoch());
  tally.verified += reply.match == Match::kEqual || reply.match == Match::kDiffers;
  tally.mismatches += reply.match == Match::kDiffers;
  tally.unverified += reply.match == Match::kNoReference;
  for (const int reference : reply.references) ++tally.equal_to[reference];
}

void Recorder::Error(size_t caller, const absl::Status& status) {
  Cell& cell = cells_[caller % cells_.size()];
  absl::MutexLock lock(&cell.mu);
  ++cell.tally.errors[std::string(absl::StatusCodeToString(status.code()))];
  ++cell.tally.error_count;
  if (cell.tally.first_error.empty()) cell.tally.first_error = client::Describe(status);
}

Tally Recorder::Merged() const {
  Tally all;
  for (const Cell& cell : cells_) {
    absl::MutexLock lock(&cell.mu);
    all.Merge(cell.tally);
  }
  return all;
}

}  // namespace fulcrum::cli
