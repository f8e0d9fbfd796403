// The levers' journal: a file, a line a step (lever_record.h), each on the disk before the change
// it tells takes effect. A long one is made shorter when it is opened (lever_compaction.h). One
// process holds it at a time. A last record that a crash cut short (no newline, or zeros of
// unwritten pages) was never acknowledged and is dropped when the file is next opened; anything
// else that is wrong with it, a line that is missing among them, is an error, since levers guessed
// from half a journal are worse than none. Whole lines that are missing at the end alone cannot be
// told from a shorter journal. What a node makes of the records is lever_recovery.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/lever_event.h"
#include "scheduler/lever_record.h"

namespace fulcrum {

// Where a lever store writes its steps ahead. Thread-safe.
class LeverLog {
 public:
  virtual ~LeverLog() = default;
  // OK once the step will survive a crash. UNAVAILABLE otherwise: nothing of it was kept.
  virtual absl::Status Append(const LeverStep& step) = 0;
};

class LeverJournal final : public LeverLog {
 public:
  struct Opened {
    std::unique_ptr<LeverJournal> journal;
    std::vector<LeverStep> steps;  // oldest first
    int64_t dropped_bytes = 0;     // of a last record that was cut short
  };
  // Creates the file when there is none. DATA_LOSS names file, line and byte of a damaged record;
  // FAILED_PRECONDITION when another process holds the file; else what the system said.
  static absl::StatusOr<Opened> Open(const std::string& path);
  // Reads the file, if there is one, as Open would, and leaves it alone: a running node may hold
  // it.
  static absl::Status Check(const std::string& path);
  ~LeverJournal() override;

  absl::Status Append(const LeverStep& step) override;

 private:
  LeverJournal(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Load(Opened& out) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string path_;
  const int fd_;
  absl::Mutex mu_;
  int64_t size_ ABSL_GUARDED_BY(mu_) = 0;  // of the whole records
  RecordChain chain_ ABSL_GUARDED_BY(mu_);
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fulcrum
