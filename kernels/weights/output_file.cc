// A file without a name (O_TMPFILE) that is linked when complete, or a temporary one that is
// renamed.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace fulcrum {
namespace {

constexpr mode_t kReadable = 0644;  // weights are to be read by the node's own user

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

absl::Status Exists(const std::string& path) {
  return absl::AlreadyExistsError(
      absl::StrCat(path, " exists already; name another file, or ask for it to be replaced"));
}

absl::Status CheckTarget(const std::string& path, OutputFile::Existing existing) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : WriteError(absl::StrCat("looking at ", path));
  }
  if (!S_ISREG(found.st_mode)) {
    const char* const what = S_ISDIR(found.st_mode)   ? "a directory"
                             : S_ISLNK(found.st_mode) ? "a symbolic link"
                                                      : "a device, pipe or socket";
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is ", what, "; expected a new name or a regular file"));
  }
  return existing == OutputFile::Existing::kReplace ? absl::OkStatus() : Exists(path);
}

// What linkat takes for a file without a name; needs /proc.
std::string LinkOf(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path,
                                                               uint64_t bytes, Existing existing) {
  if (absl::Status s = CheckTarget(path, existing); !s.ok()) return s;
  std::unique_ptr<OutputFile> file(new OutputFile(path, existing));
  if (absl::Status s = file->Open(); !s.ok()) return s;
  if (fchmod(file->fd_, kReadable) != 0 || ftruncate(file->fd_, static_cast<off_t>(bytes)) != 0) {
    return WriteError(absl::StrCat("sizing ", path));
  }
  return file;
}

absl::Status OutputFile::Open() {
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  fd_ = open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, kReadable);
  if (fd_ >= 0 && access(LinkOf(fd_).c_str(), F_OK) == 0) return absl::OkStatus();
  if (fd_ >= 0) close(fd_);
  std::string name = absl::StrCat(path_, ".XXXXXX");
  fd_ = mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) return WriteError(absl::StrCat("creating ", path_));
  temporary_ = std::move(name);
  return absl::OkStatus();
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status OutputFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return WriteError(absl::StrCat("writing ", path_));
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (fsync(fd_) != 0) return WriteError(absl::StrCat("flushing ", path_));
  // Once more: hours may lie between Create and now.
  if (absl::Status s = CheckTarget(path_, existing_); !s.ok()) return s;
  return TakeName();
}

// A link never replaces what is there, a rename does: a file without a name that replaces another
// has to be linked under a temporary one for a moment.
absl::Status OutputFile::TakeName() {
  const bool replace = existing_ == Existing::kReplace;
  if (temporary_.empty()) {
    std::string name = replace ? absl::StrCat(path_, ".", getpid()) : path_;
    if (linkat(AT_FDCWD, LinkOf(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return errno == EEXIST ? Exists(name) : WriteError(absl::StrCat("naming ", name));
    }
    if (!replace) return absl::OkStatus();
    temporary_ = std::move(name);
  }
  const unsigned flags = replace ? 0 : RENAME_NOREPLACE;
  int renamed = renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), flags);
  if (renamed != 0 && errno == EINVAL) {  // a file system without the flag
    renamed = std::rename(temporary_.c_str(), path_.c_str());
  }
  if (renamed != 0) {
    return errno == EEXIST ? Exists(path_)
                           : WriteError(absl::StrCat("renaming ", temporary_, " to ", path_));
  }
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace fulcrum
