// One read-only file of weights, read by position. Reads go through pread, not a memory map: a file
// that shrinks under a map kills the process with SIGBUS, a short read is an error to report.
// The size and modification time at open are compared after every read, so that bytes of a file
// changed in place are never taken for the ones that were loaded. A file replaced by rename keeps
// serving its old content, since the descriptor stays on the old inode.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fulcrum {

// Thread-safe: every method is const and keeps no position.
class WeightFile {
 public:
  virtual ~WeightFile() = default;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // at open

  // Fills `out` from `offset`. OUT_OF_RANGE when the range was never inside the file, DATA_LOSS
  // when the file has changed or ended since it was opened.
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const;

  // Where the open file lies, links resolved, as the system knows it by the descriptor: nothing
  // that is renamed or linked anew since the path was looked at makes it another file. A file that
  // was removed meanwhile has " (deleted)" behind its name.
  virtual absl::StatusOr<std::string> Location() const { return path_; }

  // Lets the system drop cached pages of a range; only a hint.
  virtual void Release(uint64_t /*offset*/, uint64_t /*bytes*/) const {}

 protected:
  WeightFile(std::string path, uint64_t size) : path_(std::move(path)), size_(size) {}

 private:
  virtual absl::Status ReadChecked(uint64_t offset, std::span<std::byte> out) const = 0;

  const std::string path_;
  const uint64_t size_;
};

// The caller's say over what is read: called with a path as it is named before the file or folder
// is opened, and for a file again with its descriptor's path, /proc/self/fd/N, once it is open.
// Anything but OK ends the reading with that status. Unset: everything may be read.
using ReadRule = std::function<absl::Status(const std::string& path)>;

// NOT_FOUND (with the way of a link that leads nowhere), PERMISSION_DENIED, or INVALID_ARGUMENT for
// what is not a regular file.
absl::StatusOr<std::shared_ptr<const WeightFile>> OpenWeightFile(const std::string& path,
                                                                 const ReadRule& may_read = {});

// The whole of a text file. INVALID_ARGUMENT where it has more than `limit` bytes.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t limit,
                                         const ReadRule& may_read = {});

// A file that is already in memory, for parsers' tests and fuzzing.
std::shared_ptr<const WeightFile> WeightFileFromBytes(std::string path,
                                                      std::vector<std::byte> bytes);

}  // namespace fulcrum
