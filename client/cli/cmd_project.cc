// fulcrum project: one call from the shell, with what computed it.
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/call_size.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/payload.h"
#include "client/cli/table.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

v1::DType WireType(DType type) {
  switch (type) {
    case DType::kBf16:
      return v1::DTYPE_BF16;
    case DType::kF16:
      return v1::DTYPE_F16;
    case DType::kF32:
      return v1::DTYPE_F32;
  }
  return v1::DTYPE_UNSPECIFIED;
}

class Project final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--shard", &shards_,
                "models/MODEL/shards/SHARD; repeatable: one call, several outputs");
    options.Required();
    options.Add("--activations", &activations_, "Raw row-major file: .bf16, .f16 or .f32");
    options.Add("--random", &seed_, "Seed of random BF16 activations instead of a file");
    options.Add("--rows", &rows_, "Rows of random activations");
    options.Add("--output", &output_,
                "Raw output file; with several shards .SHARD is appended to each");
    options.Add("--policy", &policy_, "exact, batch_invariant, fastest (default: the node's)");
    options.Add("--step", &step_, "decode (default) or prefill");
    options.Add("--output-type", &output_type_, "bf16 (default) or f32");
    options.Add("--call-id", &call_id_, "Returned with the reply and logged by the node");
    options.Add("--traceparent", &traceparent_, "W3C trace context");
  }

  int Run(const Context& context) override {
    v1::ProjectRequest request;
    absl::Status status = FillWords(&request);
    status.Update(CheckInputs());
    status.Update(CheckOutputs());
    if (!status.ok()) return context.InputError(status);
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto k = FindK(**client, context);
    if (!k.ok()) return context.NodeError(k.status());
    const auto node = (*client)->GetNodeInfo(context.Call());
    if (!node.ok()) return context.NodeError(node.status());
    status = FillActivations(node->limits(), *k, &request);
    if (!status.ok()) return context.InputError(status);
    client::CallOptions options = context.Call();
    options.traceparent = traceparent_;
    client::CallInfo info;
    const absl::Time start = absl::Now();
    const auto reply = (*client)->Project(request, options, &info);
    const absl::Duration took = absl::Now() - start;
    if (!reply.ok()) return context.NodeError(reply.status());
    for (const v1::ShardOutput& output : reply->outputs()) {
      if (output_.empty()) break;
      status.Update(WriteFile(PathFor(output.shard()), output.data()));
    }
    if (!status.ok()) return context.InputError(status);
    Report(context, request, *reply, info, took);
    return kOk;
  }

 private:
  absl::Status FillWords(v1::ProjectRequest* request) const {
    const auto policy = ParsePolicyWord(policy_);
    const auto step = ParseStepWord(step_);
    const auto type = ParseDTypeWord(output_type_);
    absl::Status status = policy.status();
    status.Update(step.status());
    status.Update(type.status());
    if (!status.ok()) return status;
    request->set_policy(*policy);
    request->set_step(*step);
    request->set_output_type(*type);
    request->set_call_id(call_id_);
    for (const std::string& shard : shards_) request->add_shards(shard);
    return absl::OkStatus();
  }

  absl::Status CheckInputs() const {
    if (activations_.empty() && !seed_) {
      return absl::InvalidArgumentError("no activations: give --activations FILE or --random SEED");
    }
    if (!activations_.empty() && seed_) {
      return absl::InvalidArgumentError(
          "--activations and --random were both given; which of them is meant?");
    }
    if (seed_ && *seed_ < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--random: expected a seed of 0 or more, got ", *seed_));
    }
    return absl::OkStatus();
  }

  // Two outputs of one name would leave the last one only.
  absl::Status CheckOutputs() const {
    if (output_.empty()) return absl::OkStatus();
    std::map<std::string, std::string> shard_of;
    for (const std::string& shard : shards_) {
      const auto [first, fresh] = shard_of.emplace(PathFor(shard), shard);
      if (fresh) continue;
      return absl::InvalidArgumentError(absl::StrCat("--output: ", first->second, " and ", shard,
                                                     " would both be written to ", first->first,
                                                     "; ask for them in separate calls"));
    }
    return absl::OkStatus();
  }

  absl::Status FillActivations(const v1::Limits& limits, int64_t k,
                               v1::ProjectRequest* request) const {
    Activations activations{.type = DType::kBf16, .rows = rows_};
    if (!activations_.empty()) {
      auto measured = MeasureActivations(activations_, k);
      if (!measured.ok()) return measured.status();
      activations = *std::move(measured);
    }
    absl::Status status = CheckCallSize(limits, request->step(), activations.rows, k,
                                        static_cast<int64_t>(SizeOf(activations.type)));
    if (!status.ok()) return status;
    if (activations_.empty()) {
      activations = RandomActivations(static_cast<uint64_t>(*seed_), rows_, k);
    } else {
      auto read = ReadActivations(activations_, k);
      if (!read.ok()) return read.status();
      activations = *std::move(read);
    }
    request->set_rows(activations.rows);
    request->set_activation_type(WireType(activations.type));
    request->set_activations(std::move(activations.bytes));
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> FindK(client::Client& client, const Context& context) const {
    const auto list = client.ListShards({}, context.Call());
    if (!list.ok()) return list.status();
    for (const v1::Shard& shard : list->shards()) {
      if (shard.name() == shards_.front()) return shard.k();
    }
    return absl::NotFoundError(absl::StrCat("no shard ", shards_.front()));
  }

  std::string PathFor(const std::string& shard) const {
    if (shards_.size() == 1) return output_;
    return absl::StrCat(output_, ".", shard.substr(shard.rfind('/') + 1));
  }

  void Report(const Context& context, const v1::ProjectRequest& request,
              const v1::ProjectResponse& reply, const client::CallInfo& info,
              absl::Duration took) const {
    if (context.json()) {
      Json outputs = Json::array();
      for (const v1::ShardOutput& output : reply.outputs()) {
        Json json = ToJson(output);
        json["bytes"] = output.data().size();
        if (!output_.empty()) json["file"] = PathFor(output.shard());
        outputs.push_back(std::move(json));
      }
      Print(context.out(), {{"call_id", reply.call_id()},
                            {"rows", request.rows()},
                            {"outputs", std::move(outputs)},
                            {"provenance", ToJson(reply.provenance())},
                            {"attempts", info.attempts},
                            {"traceparent", info.traceparent},
                            {"round_trip_us", absl::ToDoubleMicroseconds(took)}});
      return;
    }
    Table table({"SHARD", "ROWS", "N", "ARM", "CLASS", "VERSION", "HASH"});
    for (const v1::ShardOutput& o : reply.outputs()) {
      table.Row({o.shard(), absl::StrCat(request.rows()), absl::StrCat(o.n()), o.arm(),
                 Word(o.numerics()), absl::StrCat(o.version()), o.hash().substr(0, 12)});
    }
    table.Print(context.out());
    const v1::Provenance& p = reply.provenance();
    context.out() << absl::StrFormat(
        "batch of %d rows (%s), lever epoch %d, %s, node %s\nstages in us: admit %.0f, queue %.0f, "
        "gather %.0f, copy in %.0f, kernel %.0f, copy out %.0f; round trip %.0f\n",
        p.batch_rows(), Word(p.close_reason()), p.lever_epoch(), p.device(), p.node(),
        p.stages().admit() * 1e6, p.stages().queue() * 1e6, p.stages().gather() * 1e6,
        p.stages().copy_in() * 1e6, p.stages().kernel() * 1e6, p.stages().copy_out() * 1e6,
        absl::ToDoubleMicroseconds(took));
  }

  std::vector<std::string> shards_;
  std::string activations_, output_, policy_, step_, output_type_, call_id_, traceparent_;
  std::optional<int64_t> seed_;
  int64_t rows_ = 1;
};

}  // namespace

std::unique_ptr<Command> MakeProject() { return std::make_unique<Project>(); }

}  // namespace fulcrum::cli
