// A temporary file that is renamed when complete and removed when not.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace fulcrum {
namespace {

absl::Status WriteError(const std::string& what) {
  const int error = errno;
  const std::string text = absl::StrCat(what, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    default:
      return absl::FailedPreconditionError(text);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path,
                                                               uint64_t bytes) {
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return WriteError(absl::StrCat("creating ", temporary));
  std::unique_ptr<OutputFile> file(new OutputFile(path, temporary, fd));
  // mkostemp makes it private; weights are to be read by the node's own user.
  constexpr mode_t kReadable = 0644;
  if (fchmod(fd, kReadable) != 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return WriteError(absl::StrCat("sizing ", temporary));
  }
  return file;
}

OutputFile::~OutputFile() {
  close(fd_);
  if (!committed_) unlink(temporary_.c_str());
}

absl::Status OutputFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return WriteError(absl::StrCat("writing ", temporary_));
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (fsync(fd_) != 0) return WriteError(absl::StrCat("flushing ", temporary_));
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return WriteError(absl::StrCat("renaming ", temporary_, " to ", path_));
  }
  committed_ = true;
  return absl::OkStatus();
}

}  // namespace fulcrum
