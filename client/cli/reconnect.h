// A connection that outlives restarts of the node, for commands that watch it. What was missed
// meanwhile is the command's to ask for. Waiting here needs no handler for signals: Ctrl-C ends
// such a command as it ends any other, at once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {

// Between two tries to reach a node that went away.
inline constexpr absl::Duration kFirstRetry = absl::Milliseconds(500);
inline constexpr absl::Duration kLongestRetry = absl::Seconds(5);

class Reconnect {
 public:
  // --timeout, if given, bounds everything from here on.
  Reconnect(const Context& context, std::unique_ptr<client::Client> client);

  client::Client& client() { return *client_; }
  // For calls over the connection: what is left of --timeout.
  client::CallOptions Call() const;

  // Whether the error says that the node or the way to it is gone, rather than what it refused.
  static bool Lost(const absl::Status& status);
  // Says on standard error that the connection was lost, and why; tries until the node answers, and
  // says that too. What the node then answered; another error than a lost connection ends it, and
  // so does --timeout, with `why`.
  absl::StatusOr<v1::ListLeversResponse> Again(const absl::Status& why);

 private:
  const Context& context_;
  std::unique_ptr<client::Client> client_;
  const absl::Time deadline_;
};

}  // namespace fulcrum::cli
