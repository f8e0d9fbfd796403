// A canary by batch that a command borrows a node for: half of the batches of FASTEST calls run
// under its values until it is given back, and nothing of it stays. A command that dies gives back
// too: the node reverts a canary whose heartbeats stop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/step_node.h"
#include "client/cpp/client.h"
#include "fulcrum/v1/lever_service.pb.h"

namespace fulcrum::cli {

class CanaryLoan {
 public:
  // FAILED_PRECONDITION naming the canary that runs already, if one does.
  static absl::Status NoneRuns(client::Client& client, const client::CallOptions& options);
  // Slower values are what it is for, so no guard is on the time and declines are only counted;
  // wrong results and failed launches end it. ABORTED when another epoch is live. `client` outlives
  // the loan.
  static absl::StatusOr<CanaryLoan> Start(client::Client& client,
                                          const client::CallOptions& options,
                                          const LeverValues& candidate, uint64_t based_on_epoch,
                                          const std::string& reason);

  // As it was started.
  const v1::Canary& canary() const { return canary_; }
  // Says that the command is there. FAILED_PRECONDITION when the canary is over.
  absl::Status Beat();
  // Aborts it, and returns what the node found; once. ABORTED, saying why, when somebody ended it
  // before.
  absl::StatusOr<v1::Canary> GiveBack();

 private:
  CanaryLoan(client::Client& client, client::CallOptions options, v1::Canary canary)
      : client_(&client), options_(std::move(options)), canary_(std::move(canary)) {}
  client::Client* client_;
  client::CallOptions options_;
  v1::Canary canary_;
};

}  // namespace fulcrum::cli
