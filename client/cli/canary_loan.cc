// See canary_loan.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/canary_loan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/lever_messages.h"
#include "client/cli/lever_set.h"
#include "client/cli/names.h"

namespace fulcrum::cli {
namespace {

constexpr double kShare = 0.5;
// Longer than any one call of a step may take, short enough for who waits for the node.
constexpr double kHeartbeatSeconds = 60;
// The command says when it ends; a canary whose time is over would only be held.
constexpr double kLongestSeconds = 24 * 3600;
constexpr int64_t kMostDeclines = 1000000;

}  // namespace

absl::Status CanaryLoan::NoneRuns(client::Client& client, const client::CallOptions& options) {
  const auto levers = client.ListLevers(options);
  if (!levers.ok()) return levers.status();
  if (!levers->has_canary() || !Lives(levers->canary())) return absl::OkStatus();
  std::string under;
  for (const v1::LeverAssignment& one : levers->canary().candidate()) {
    absl::StrAppend(&under, under.empty() ? "" : ", ", one.name());
  }
  return absl::FailedPreconditionError(
      absl::StrCat("--by batch: ", levers->canary().name(), " runs already (", under,
                   "), and a node runs one canary at a time: promote or abort it first, or wait"));
}

absl::StatusOr<CanaryLoan> CanaryLoan::Start(client::Client& client,
                                             const client::CallOptions& options,
                                             const LeverValues& candidate, uint64_t based_on_epoch,
                                             const std::string& reason) {
  v1::StartCanaryRequest request;
  AddAssignments(candidate, &request);
  request.set_share(kShare);
  request.set_unit(v1::CANARY_UNIT_BATCH);
  request.set_duration_seconds(kLongestSeconds);
  request.set_on_success(v1::CANARY_SUCCESS_HOLD);
  v1::CanaryGuards* const guards = request.mutable_guards();
  guards->set_min_samples(1);
  guards->set_kernel_p50(-1);
  guards->set_kernel_p99(-1);
  guards->set_max_declines(kMostDeclines);
  guards->set_heartbeat_seconds(kHeartbeatSeconds);
  request.set_based_on_epoch(based_on_epoch);
  request.set_reason(reason);
  auto canary = client.StartCanary(request, options);
  if (!canary.ok()) return canary.status();
  return CanaryLoan(client, options, *std::move(canary));
}

absl::Status CanaryLoan::Beat() {
  v1::HeartbeatCanaryRequest request;
  request.set_name(canary_.name());
  return client_->HeartbeatCanary(request, options_).status();
}

absl::StatusOr<v1::Canary> CanaryLoan::GiveBack() {
  v1::AbortCanaryRequest request;
  request.set_name(canary_.name());
  request.set_reason("the measurement is over");
  // A node that is gone must not hold a command that was asked to end.
  client::CallOptions options = options_;
  options.timeout = std::min(options.timeout.value_or(kTurnBack), kTurnBack);
  auto aborted = client_->AbortCanary(request, options);
  if (aborted.ok()) return aborted;
  if (!absl::IsFailedPrecondition(aborted.status())) {
    return WithMessage(aborted.status(),
                       absl::StrCat(aborted.status().message(), "; ", canary_.name(),
                                    " may still run: the node reverts it ", kHeartbeatSeconds,
                                    " s after the last heartbeat, `fulcrum levers abort ",
                                    canary_.name(), "` at once"));
  }
  // It is over already: the node ended it, or an operator.
  auto levers = client_->ListLevers(options);
  if (!levers.ok()) return levers.status();
  if (levers->canary().name() != canary_.name()) return aborted;
  return absl::AbortedError(absl::StrCat(canary_.name(), " was ", Word(levers->canary().state()),
                                         ": ", levers->canary().evidence()));
}

}  // namespace fulcrum::cli
