// The place of a Unix socket in the file system. gRPC unlinks whatever socket it finds at the path
// it binds, a living node's too, and unlinks the path again when it stops, whoever's it is by then.
// So it binds a name of its own beside the path, and this puts that socket there and takes it away.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fulcrum::service {

class UnixSocket {
 public:
  // Longest path: the name beside it has to fit an address (107 bytes) too.
  static constexpr size_t kMaxPath = 96;

  // UNAVAILABLE when somebody answers at `path`, or something that is no socket stands there. A
  // socket that nobody listens on is what a node that was killed left behind: it may be replaced.
  static absl::StatusOr<std::unique_ptr<UnixSocket>> Claim(const std::string& path);
  ~UnixSocket();  // takes the path away if it still is this socket

  const std::string& bind_path() const { return bind_path_; }  // to listen on
  // Once bind_path is listened on. UNAVAILABLE when somebody was faster.
  absl::Status Publish();

 private:
  explicit UnixSocket(std::string path);

  const std::string path_, bind_path_;
  bool published_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace fulcrum::service
