// Positioned reads with the file's size and time of change looked at after each.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/weight_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/weights/file_links.h"

namespace fulcrum {
namespace {

absl::Status ErrnoStatus(int error, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(text);
    case EIO:
      return absl::DataLossError(text);
    default:
      return absl::FailedPreconditionError(text);
  }
}

class DiskFile final : public WeightFile {
 public:
  DiskFile(std::string path, int fd, const struct stat& at_open)
      : WeightFile(std::move(path), static_cast<uint64_t>(at_open.st_size)),
        fd_(fd),
        modified_(at_open.st_mtim) {}
  ~DiskFile() override { close(fd_); }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  absl::StatusOr<std::string> Location() const override {
    std::error_code error;
    const std::string link = absl::StrCat("/proc/self/fd/", fd_);
    std::string location = std::filesystem::read_symlink(link, error).string();
    if (!error) return location;
    return ErrnoStatus(error.value(), absl::StrCat("reading ", link, " of ", path()));
  }

  void Release(uint64_t offset, uint64_t bytes) const override {
    // The result is of no consequence: the pages are clean and stay readable.
    (void)posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                        POSIX_FADV_DONTNEED);
  }

 private:
  absl::Status ReadChecked(uint64_t offset, std::span<std::byte> out) const override {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got =
          pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path()));
      if (got == 0) {
        return absl::DataLossError(absl::StrFormat(
            "%s ended at byte %d while reading; it had %d bytes when it was opened. Restore the "
            "file and load it again",
            path(), offset + done, size()));
      }
      done += static_cast<size_t>(got);
    }
    return CheckUnchanged();
  }

  // After the bytes are in hand, so that a change before or during the read is seen. The change
  // time is left out on purpose: renaming another file over this one moves it and loses nothing.
  absl::Status CheckUnchanged() const {
    struct stat now;
    if (fstat(fd_, &now) != 0) return ErrnoStatus(errno, absl::StrCat("checking ", path()));
    const bool same_size = static_cast<uint64_t>(now.st_size) == size();
    if (same_size && now.st_mtim.tv_sec == modified_.tv_sec &&
        now.st_mtim.tv_nsec == modified_.tv_nsec) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrFormat(
        "%s changed since it was opened: %d bytes then, %d now%s. Load it again, or replace files "
        "by "
        "renaming instead of writing in place",
        path(), size(), static_cast<int64_t>(now.st_size), same_size ? ", modified in place" : ""));
  }

  const int fd_;
  const timespec modified_;
};

class MemoryFile final : public WeightFile {
 public:
  MemoryFile(std::string path, std::vector<std::byte> bytes)
      : WeightFile(std::move(path), bytes.size()), bytes_(std::move(bytes)) {}

 private:
  absl::Status ReadChecked(uint64_t offset, std::span<std::byte> out) const override {
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
    return absl::OkStatus();
  }

  const std::vector<std::byte> bytes_;
};

}  // namespace

absl::Status WeightFile::Read(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) {
    return absl::OutOfRangeError(absl::StrFormat(
        "%s: %d bytes at %d are outside the file's %d bytes", path_, out.size(), offset, size_));
  }
  return out.empty() ? absl::OkStatus() : ReadChecked(offset, out);
}

absl::StatusOr<std::shared_ptr<const WeightFile>> OpenWeightFile(const std::string& path,
                                                                 const ReadRule& may_read) {
  if (may_read) {
    if (absl::Status s = may_read(path); !s.ok()) return s;
  }
  // Non-blocking, so that a named pipe is refused below instead of waiting for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const std::string links = LinkText(path);
    return ErrnoStatus(error, absl::StrCat("opening ", links.empty() ? path : links));
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    const std::string links = LinkText(path);
    return absl::InvalidArgumentError(absl::StrCat(
        links.empty() ? path : links,
        S_ISDIR(info.st_mode) ? " is a folder; expected a file" : " is not a regular file"));
  }
  auto file = std::make_shared<DiskFile>(path, fd, info);
  if (may_read) {
    // Again for what was opened: a link may have been pointed elsewhere since.
    if (absl::Status s = may_read(absl::StrCat("/proc/self/fd/", fd)); !s.ok()) return s;
  }
  return file;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t limit,
                                         const ReadRule& may_read) {
  absl::StatusOr<std::shared_ptr<const WeightFile>> file = OpenWeightFile(path, may_read);
  if (!file.ok()) return file.status();
  if ((*file)->size() > limit) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %d bytes; at most %d are read", path, (*file)->size(), limit));
  }
  std::string text((*file)->size(), '\0');
  absl::Status status = (*file)->Read(0, std::as_writable_bytes(std::span(text)));
  if (!status.ok()) return status;
  return text;
}

std::shared_ptr<const WeightFile> WeightFileFromBytes(std::string path,
                                                      std::vector<std::byte> bytes) {
  return std::make_shared<MemoryFile>(std::move(path), std::move(bytes));
}

}  // namespace fulcrum
