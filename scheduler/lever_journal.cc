// The journal's file: reading it back, and appending so that a failure leaves it as it was.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/lever_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "scheduler/lever_compaction.h"

namespace fulcrum {
namespace {

absl::Status SystemError(const std::string& path, const char* what) {
  const int error = errno;
  const std::string text =
      absl::StrFormat("lever journal %s: %s: %s", path, what, std::strerror(error));
  if (error == EACCES || error == EPERM || error == EROFS) {
    return absl::PermissionDeniedError(text);
  }
  if (error == ENOENT) return absl::NotFoundError(text);
  return absl::UnavailableError(text);
}

// A new file's name is on the disk only once its directory is.
absl::Status SyncDirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, "its directory");
  const bool synced = ::fsync(fd) == 0;
  absl::Status status = synced ? absl::OkStatus() : SystemError(path, "its directory");
  ::close(fd);
  return status;
}

bool WriteAll(int fd, std::string_view bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return true;
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::pread(fd, buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path, "read");
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

// Puts a file of `steps` in the journal's place and returns it, open and locked. At every moment
// the path names the whole old or the whole new file. -1 when the new one could not be made: the
// old one stays, which is only longer than it need be.
absl::StatusOr<int> Replace(const std::string& path, mode_t mode,
                            const std::vector<LeverStep>& steps) {
  const std::string next = path + ".new";  // a killed process may have left one
  const int fd = ::open(next.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0640);
  if (fd < 0) return -1;
  std::string text;
  RecordChain chain;
  for (const LeverStep& step : steps) text += EncodeStep(step, chain);
  if (::fchmod(fd, mode & 07777) != 0 || ::flock(fd, LOCK_EX | LOCK_NB) != 0 ||
      !WriteAll(fd, text, 0) || ::fsync(fd) != 0 || ::rename(next.c_str(), path.c_str()) != 0) {
    ::unlink(next.c_str());
    ::close(fd);
    return -1;
  }
  // Until the new name is on the disk a crash brings the old file back, and what was appended to
  // the new one would be gone.
  if (absl::Status s = SyncDirectoryOf(path); !s.ok()) {
    ::close(fd);
    return s;
  }
  return fd;
}

// What a journal's text holds. What is behind `size` was cut short.
struct Records {
  std::vector<LeverStep> steps;
  RecordChain chain;
  int64_t size = 0;
  bool lacks_newline = false;  // the last record
};
absl::StatusOr<Records> ReadRecords(const std::string& path, std::string_view rest) {
  Records out;
  uint64_t epoch = 0;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t end = rest.find('\n');
    // One that lacks its newline alone is whole: a crash or an editor took that.
    absl::StatusOr<LeverStep> step = DecodeStep(rest.substr(0, end), out.chain);
    if (step.ok() && step->front().epoch <= epoch) {
      step = absl::DataLossError(
          absl::StrFormat("its epoch is %d after one of epoch %d", step->front().epoch, epoch));
    }
    if (!step.ok()) {
      // Every record but the last was on the disk before the next was begun, and the last is cut
      // short only when its newline is missing. A crash of the machine may also leave pages of it
      // as zeros, which no record holds; any other whole line was written whole and may have been
      // acknowledged.
      const bool no_newline = end == std::string_view::npos,
                 last = no_newline || end + 1 == rest.size();
      const bool torn = no_newline || rest.substr(0, end).find('\0') != std::string_view::npos;
      if (last && torn && MayBeCutShort(rest.substr(0, end))) return out;
      return absl::DataLossError(absl::StrFormat(
          "lever journal %s: line %d (byte %d) is damaged: %s. That is not what a crash leaves of "
          "a last record. Restore the file, or move it away to start with the levers of the "
          "configuration",
          path, line, out.size, std::string(step.status().message())));
    }
    epoch = step->front().epoch;
    out.steps.push_back(*std::move(step));
    out.lacks_newline = end == std::string_view::npos;
    const size_t taken = out.lacks_newline ? rest.size() : end + 1;
    out.size += static_cast<int64_t>(taken);
    rest.remove_prefix(taken);
  }
  return out;
}

// Whether the path still names the open file.
bool StillThere(const std::string& path, const struct stat& open) {
  struct stat named {};
  return ::stat(path.c_str(), &named) == 0 && named.st_ino == open.st_ino &&
         named.st_dev == open.st_dev;
}

bool IsLink(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

}  // namespace

absl::StatusOr<LeverJournal::Opened> LeverJournal::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (fd < 0) return SystemError(path, "open");
  Opened opened;
  opened.journal.reset(new LeverJournal(path, fd));  // closes it from here on
  struct stat info {};
  if (::fstat(fd, &info) != 0) return SystemError(path, "stat");
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("lever journal %s: not a regular file", path));
  }
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError(path, "lock");
    return absl::FailedPreconditionError(absl::StrFormat(
        "lever journal %s: another process holds it; each node needs a journal of its own", path));
  }
  if (!StillThere(path, info)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "lever journal %s: another process replaced it just now; each node needs a journal of its "
        "own",
        path));
  }
  if (absl::Status s = SyncDirectoryOf(path); !s.ok()) return s;
  if (absl::Status s = opened.journal->Load(opened); !s.ok()) return s;
  if (opened.steps.size() <= kLongJournal || IsLink(path)) return opened;
  const auto shorter = Replace(path, info.st_mode, CompactSteps(opened.steps, kRecentSteps));
  if (!shorter.ok()) return shorter.status();
  if (*shorter < 0) return opened;
  Opened again;
  again.journal.reset(new LeverJournal(path, *shorter));
  if (absl::Status s = again.journal->Load(again); !s.ok()) return s;
  again.dropped_bytes = opened.dropped_bytes;
  return again;
}

LeverJournal::~LeverJournal() { ::close(fd_); }

absl::Status LeverJournal::Load(Opened& out) {
  const absl::StatusOr<std::string> text = ReadAll(fd_, path_);
  if (!text.ok()) return text.status();
  absl::StatusOr<Records> records = ReadRecords(path_, *text);
  if (!records.ok()) return records.status();
  out.steps = std::move(records->steps);
  out.dropped_bytes = static_cast<int64_t>(text->size()) - records->size;
  absl::MutexLock lock(&mu_);
  chain_ = records->chain;
  size_ = records->size;
  if (records->lacks_newline) {
    if (!WriteAll(fd_, "\n", size_) || ::fdatasync(fd_) != 0) {
      return SystemError(path_, "end the last record");
    }
    ++size_;
  }
  if (out.dropped_bytes > 0 && (::ftruncate(fd_, size_) != 0 || ::fdatasync(fd_) != 0)) {
    return SystemError(path_, "drop a record that was cut short");
  }
  return absl::OkStatus();
}

absl::Status LeverJournal::Check(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? absl::OkStatus() : SystemError(path, "open");
  const absl::StatusOr<std::string> text = ReadAll(fd, path);
  ::close(fd);
  if (!text.ok()) return text.status();
  return ReadRecords(path, *text).status();
}

absl::Status LeverJournal::Append(const LeverStep& step) {
  absl::MutexLock lock(&mu_);
  if (!broken_.ok()) return broken_;
  // Written to a file that no start will find, the step would not survive it.
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !StillThere(path_, info)) {
    return absl::UnavailableError(absl::StrFormat(
        "lever journal %s: the file was removed, renamed or replaced while the node runs; put it "
        "back, or restart the node",
        path_));
  }
  // Written behind a gap or over others' bytes it would stop the next start.
  if (info.st_size != size_) {
    return absl::UnavailableError(absl::StrFormat(
        "lever journal %s: the file has %d bytes instead of %d: something else cut it or wrote to "
        "it while the node runs; put back what it had, or move it away and restart the node",
        path_, static_cast<int64_t>(info.st_size), size_));
  }
  RecordChain chain = chain_;
  const std::string line = EncodeStep(step, chain);
  if (!WriteAll(fd_, line, size_)) {
    const absl::Status status = SystemError(path_, "write");
    // What a full disk took of the line goes again; if it does not, nothing may follow it.
    if (::ftruncate(fd_, size_) != 0) broken_ = status;
    return absl::UnavailableError(status.message());
  }
  if (::fdatasync(fd_) != 0) {
    // The system may have dropped the pages it could not write: a later success would prove
    // nothing about this line.
    broken_ = absl::UnavailableError(SystemError(path_, "flush to disk").message());
    (void)::ftruncate(fd_, size_);
    return broken_;
  }
  size_ += static_cast<int64_t>(line.size());
  chain_ = chain;
  return absl::OkStatus();
}

}  // namespace fulcrum
