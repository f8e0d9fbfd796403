// A file being written out of sight, which takes its final name only when it is whole: a reader of
// the final path never sees half a file, and a failure leaves nothing behind.
//
// Where the file system can, the file has no name until then, so that a killed process leaves
// nothing either. Where it cannot, it lies beside the final path as PATH.XXXXXX (six random
// characters), which a process killed by a signal leaves there; it may be deleted. Replacing a file
// takes the name PATH.PID for a moment.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fulcrum {

class OutputFile {
 public:
  // What becomes of a regular file at the path. Anything else there (a device, a directory, a
  // symbolic link) is always refused.
  enum class Existing { kRefuse, kReplace };

  // Creates the file with its final size, zeros throughout. ALREADY_EXISTS, or FAILED_PRECONDITION
  // for what is not a regular file.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path, uint64_t bytes,
                                                            Existing existing);
  ~OutputFile();  // removes the file unless Commit succeeded
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes);
  // Flushes to the disk and takes the final name. With kRefuse a file that came to be there
  // meanwhile is kept: ALREADY_EXISTS.
  absl::Status Commit();

 private:
  OutputFile(std::string path, Existing existing) : path_(std::move(path)), existing_(existing) {}
  absl::Status Open();
  absl::Status TakeName();

  const std::string path_;
  const Existing existing_;
  std::string temporary_;  // the file's present name; empty while it has none
  int fd_ = -1;
};

}  // namespace fulcrum
