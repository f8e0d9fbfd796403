// Probing, linking and removing of a socket's path.
// SPDX-License-Identifier: Apache-2.0
#include "service/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fulcrum::service {
namespace {

absl::Status Taken(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("listen: cannot listen on \"unix:", path,
                                             "\": another process listens there. Choose another"));
}

absl::Status Failed(const std::string& path, int error) {
  return absl::UnavailableError(
      absl::StrCat("listen: cannot listen on \"unix:", path, "\": ", std::strerror(error)));
}

// Whether the path is free for a socket: nothing is there, or a socket that nobody listens on.
absl::Status CheckFree(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Failed(path, errno);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::UnavailableError(absl::StrCat("listen: cannot listen on \"unix:", path,
                                               "\": something that is no socket is there"));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // Non-blocking: a listener with a full backlog is one, too.
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failed(path, errno);
  const int result = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::close(fd);
  return result != 0 && error == ECONNREFUSED ? absl::OkStatus() : Taken(path);
}

}  // namespace

UnixSocket::UnixSocket(std::string path)
    : path_(std::move(path)), bind_path_(absl::StrCat(path_, ".", ::getpid())) {}

absl::StatusOr<std::unique_ptr<UnixSocket>> UnixSocket::Claim(const std::string& path) {
  if (absl::Status s = CheckFree(path); !s.ok()) return s;
  return std::unique_ptr<UnixSocket>(new UnixSocket(path));
}

absl::Status UnixSocket::Publish() {
  struct stat info {};
  if (lstat(bind_path_.c_str(), &info) != 0) return Failed(path_, errno);
  // Once more: loading of keys and the like may have taken a while.
  absl::Status status = CheckFree(path_);
  if (status.ok()) {
    ::unlink(path_.c_str());
    // Unlike a rename it fails when another node is there first.
    if (::link(bind_path_.c_str(), path_.c_str()) != 0) {
      status = errno == EEXIST ? Taken(path_) : Failed(path_, errno);
    }
  }
  ::unlink(bind_path_.c_str());
  if (!status.ok()) return status;
  device_ = info.st_dev;
  inode_ = info.st_ino;
  published_ = true;
  return absl::OkStatus();
}

UnixSocket::~UnixSocket() {
  struct stat info {};
  if (published_ && lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

}  // namespace fulcrum::service
