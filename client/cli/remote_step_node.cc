// Decode calls as Project requests, levers as RPCs. See remote_step_node.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/remote_step_node.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/lever_messages.h"
#include "client/cli/names.h"
#include "client/cli/payload.h"

namespace fulcrum::cli {
namespace {

Family FamilyOf(v1::Family family) { return ParseFamily(Word(family)).value_or(Family::kOther); }

class RemoteStepNode final : public StepNode {
 public:
  RemoteStepNode(std::unique_ptr<client::Client> client, std::string target, std::string model,
                 absl::Duration timeout)
      : client_(std::move(client)),
        target_(std::move(target)),
        model_(std::move(model)),
        timeout_(timeout) {}

  std::string Description() const override { return target_; }

  absl::StatusOr<std::vector<StepWeight>> Weights() override {
    v1::ListShardsRequest request;
    request.set_parent(absl::StrCat("models/", model_));
    const auto shards = client_->ListShards(request, WithDeadline());
    if (!shards.ok()) return shards.status();
    std::vector<StepWeight> out;
    for (const v1::Shard& shard : shards->shards()) {
      if (shard.state() != v1::SHARD_STATE_SERVING) {
        return absl::FailedPreconditionError(absl::StrCat(shard.name(), " is ", Word(shard.state()),
                                                          "; a step needs all of its shards"));
      }
      out.push_back({shard.name(), FamilyOf(shard.family()), shard.n(), shard.k()});
    }
    return out;
  }

  absl::Status Prepare(const std::vector<DecodeCall>& calls, const StepInputs& inputs) override {
    const auto policy = ParsePolicyWord(std::string(Name(inputs.policy)));
    if (!policy.ok()) return policy.status();
    requests_.clear();
    for (const DecodeCall& call : calls) {
      v1::ProjectRequest& request = requests_.emplace_back();
      for (const StepWeight& weight : call.weights) request.add_shards(weight.name);
      request.set_rows(inputs.rows);
      request.set_activations(RandomActivations(inputs.seed, inputs.rows, call.k).bytes);
      request.set_step(v1::STEP_DECODE);
      request.set_policy(*policy);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepReply> Call(size_t index) override {
    const auto reply = client_->Project(requests_[index], WithDeadline());
    if (!reply.ok()) return reply.status();
    const v1::Provenance& of = reply->provenance();
    StepReply out{.lever_epoch = of.lever_epoch(),
                  .batch_rows = of.batch_rows(),
                  .kernel = of.stages().kernel()};
    for (const v1::ShardOutput& output : reply->outputs()) {
      const uint64_t first = versions_.try_emplace(output.shard(), output.version()).first->second;
      if (output.version() != first) {
        return absl::AbortedError(absl::StrCat(
            output.shard(),
            " was replaced while this command measures: its replies are of version ",
            output.version(), ", its first of version ", first, "; run the command again"));
      }
      out.arms.push_back(output.arm());
    }
    return out;
  }

  absl::StatusOr<LiveLevers> Levers() override {
    const auto levers = client_->ListLevers(WithDeadline());
    if (!levers.ok()) return levers.status();
    return LiveOf(*levers);
  }

  absl::StatusOr<LiveLevers> SetLevers(const LeverValues& values, uint64_t based_on_epoch,
                                       const std::string& reason) override {
    v1::SetLeversRequest request;
    AddAssignments(values, &request);
    request.set_based_on_epoch(based_on_epoch);
    request.set_reason(reason);
    const auto set = client_->SetLevers(request, WithDeadline());
    if (!set.ok()) return set.status();
    return LiveOf(*set);
  }

  void EndBy(absl::Time deadline) override { deadline_ = deadline; }

  absl::StatusOr<std::vector<std::string>> Declined(size_t index) override {
    const v1::ProjectRequest& call = requests_[index];
    std::vector<std::string> out;
    for (const std::string& shard : call.shards()) {
      v1::ExplainLadderRequest request;
      request.set_shard(shard);
      request.set_policy(call.policy());
      request.set_step(call.step());
      request.add_rows(static_cast<int32_t>(call.rows()));
      const auto ladder = client_->ExplainLadder(request, WithDeadline());
      if (!ladder.ok()) return ladder.status();
      out.push_back(ladder->choices().empty() ? ""
                                              : AskedInVain(ladder->choices(0), call.policy()));
    }
    return out;
  }

 private:
  client::CallOptions WithDeadline() const {
    client::CallOptions options;
    options.timeout = std::max(std::min(timeout_, deadline_ - absl::Now()), absl::ZeroDuration());
    return options;
  }

  // Of either response that lists all levers.
  template <typename Response>
  static LiveLevers LiveOf(const Response& response) {
    LiveLevers out{.epoch = response.epoch()};
    for (const v1::Lever& lever : response.levers()) out.values[lever.name()] = lever.value();
    return out;
  }

  // A rung above the one that runs whose lever is open: the ladder looks at capabilities after
  // levers and before classes, and a policy of class exact asks for no other.
  static std::string AskedInVain(const v1::LadderChoice& choice, v1::Policy policy) {
    for (const v1::Rung& rung : choice.rungs()) {
      if (rung.arm() == choice.arm()) break;
      if (rung.verdict() != "capability" || rung.lever().empty()) continue;
      if (policy == v1::POLICY_EXACT && rung.numerics() != v1::NUMERICS_CLASS_EXACT) continue;
      return rung.arm();
    }
    return "";
  }

  const std::unique_ptr<client::Client> client_;
  const std::string target_, model_;
  const absl::Duration timeout_;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::vector<v1::ProjectRequest> requests_;
  std::map<std::string, uint64_t> versions_;  // by shard: of its first reply
};

}  // namespace

std::unique_ptr<StepNode> MakeRemoteStepNode(std::unique_ptr<client::Client> client,
                                             std::string target, std::string model,
                                             absl::Duration timeout) {
  return std::make_unique<RemoteStepNode>(std::move(client), std::move(target), std::move(model),
                                          timeout);
}

}  // namespace fulcrum::cli
