// A file being written under a temporary name beside its final one, which it takes only when it is
// whole: a reader of the final path never sees half a file, and a failure leaves nothing behind.
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
  // Creates the temporary file with its final size, zeros throughout.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path,
                                                            uint64_t bytes);
  ~OutputFile();  // removes the temporary file unless Commit succeeded
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes);
  // Flushes to the disk and takes the final name, replacing what is there.
  absl::Status Commit();

 private:
  OutputFile(std::string path, std::string temporary, int fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

  const std::string path_;
  const std::string temporary_;
  const int fd_;
  bool committed_ = false;
};

}  // namespace fulcrum
