// What a benchmark counts. Thread-safe: cells are spread over callers, each behind a lock of its
// own, and merged when the run is over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cli/histogram.h"
#include "fulcrum/v1/projection_service.pb.h"

namespace fulcrum::cli {

inline constexpr std::array kStageNames = {"admit",   "queue",  "gather",
                                           "copy_in", "kernel", "copy_out"};

// How a reply compared with its reference.
enum class Match : uint8_t { kNotCompared, kEqual, kDiffers, kNoReference };

struct Tally {
  Histogram latency;
  int64_t calls = 0;            // OK replies
  int64_t calls_in_window = 0;  // of them, those that came before the window's end: the throughput
  int64_t rows = 0;
  double launches = 0;       // sum of rows / batch_rows: each launch counts once over its rows
  double batch_by_rows = 0;  // sum of rows * batch_rows
  std::array<double, kStageNames.size()> stage_seconds{};
  std::map<std::string, int64_t> arms, classes, close_reasons, errors;
  std::set<uint64_t> epochs;
  std::string first_error;
  int64_t error_count = 0;
  int64_t verified = 0;
  int64_t mismatches = 0;
  int64_t unverified = 0;  // chosen for comparing, but there was nothing to compare with
  // Replies equal to recorded reference i; when the oracle rejects i, they are mismatches too.
  std::map<int, int64_t> equal_to;

  void Merge(const Tally& other);
};

class Recorder {
 public:
  struct Reply {
    absl::Duration latency;
    bool in_window = true;
    int64_t rows = 0;
    Match match = Match::kNotCompared;
    std::vector<int> references;  // compared equal to these
  };
  void Ok(size_t caller, const Reply& reply, const v1::ProjectResponse& response);
  void Error(size_t caller, const absl::Status& status);
  Tally Merged() const;

 private:
  struct Cell {
    mutable absl::Mutex mu;
    Tally tally ABSL_GUARDED_BY(mu);
  };
  std::array<Cell, 16> cells_;
};

}  // namespace fulcrum::cli
