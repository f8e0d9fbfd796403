// fulcrum bench: loads a node and says how fast it answers, how it batches, and whether it is
// right.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench_checker.h"
#include "client/cli/bench_load.h"
#include "client/cli/bench_report.h"
#include "client/cli/call_size.h"
#include "client/cli/commands.h"
#include "client/cli/names.h"
#include "client/cli/payload.h"
#include "client/cpp/status.h"
#include "kernels/weights/checkpoint.h"

namespace fulcrum::cli {
namespace {

using Bits = std::vector<uint16_t>;

class Bench final : public Command {
 public:
  void Declare(Options& options) override {
    BenchOptions& o = report_.options;
    options.Add("--shard", &o.shards, "models/MODEL/shards/SHARD; repeatable: called in turn");
    options.Required();
    options.Flag("--together", &o.together, "All shards in one call");
    options.Add("--clients", &o.clients, "Calls in flight (open loop: at most)");
    options.Add("--rows", &o.rows, "Rows a call");
    options.Add("--seconds", &o.seconds, "Length of the measured window");
    options.Add("--warmup", &o.warmup, "Seconds before it, longer until page faults settle");
    options.Add("--rate", &o.rate, "Open loop: calls a second (0: closed loop)");
    options.Choice("--arrivals", &o.arrivals, {"poisson", "constant", "burst"}, "Open loop");
    options.Add("--burst", &o.burst, "Calls at one instant, for --arrivals burst");
    options.Add("--policy", &o.policy, "exact, batch_invariant, fastest (default: the node's)");
    options.Add("--step", &o.step, "decode (default) or prefill");
    options.Add("--output-type", &o.output_type, "bf16 (default) or f32");
    options.Add("--channels", &o.channels, "HTTP/2 connections; large messages gain from several");
    options.Flag("--stream", &o.stream, "ProjectStream, one a channel, instead of Project");
    options.Flag("--retry", &o.retry, "Retry as the library would (else each refusal is an error)");
    options.Add("--verify-sample", &o.verify_sample, "Share of replies compared, 0..1");
    options.Add("--payloads", &o.payloads, "Different activations, sent in turn");
    options.Add("--seed", &o.seed, "Of the activations and arrivals");
    options.Add("--weights", &o.weights, "The shard's weight file, for the oracle (with --tensor)");
    options.Add("--tensor", &o.tensor, "Its name in that file");
    options.Add("--oracle-outputs", &o.oracle_outputs, "Elements recomputed of each reference");
  }

  int Run(const Context& context) override {
    const BenchOptions& o = report_.options;
    if (absl::Status status = Check(); !status.ok()) return context.InputError(status);
    auto client = context.Connect(o.channels);
    if (!client.ok()) return context.InputError(client.status());
    client_ = client->get();
    if (absl::Status status = FindShards(context); !status.ok()) return context.NodeError(status);
    const auto node = client_->GetNodeInfo(context.Call());
    if (!node.ok()) return context.NodeError(node.status());
    std::vector<BenchCall> calls;
    absl::Status status = CheckSizes(node->limits());
    if (status.ok()) status = MakeCalls(&calls);
    if (!status.ok()) return context.InputError(status);
    const absl::Duration timeout =
        absl::Seconds(context.globals().timeout_s > 0 ? context.globals().timeout_s : 30);
    if (o.verify_sample > 0) status = RecordExact(calls, timeout);
    if (!status.ok()) return context.NodeError(status);

    std::function<void(const std::string&)> progress;
    if (isatty(STDERR_FILENO)) {
      progress = [&](const std::string& line) {
        context.err() << "\r\033[K" << line << std::flush;
      };
    }
    report_.target = context.globals().target;
    report_.machine = DescribeMachine();
    {
      BenchLoad load(client_, o, std::move(calls), &checker_, timeout);
      report_.result = load.Run(progress);
    }
    if (progress) context.err() << "\r\033[K" << std::flush;
    if (o.verify_sample > 0) AskOracle();
    if (context.json()) {
      Print(context.out(), ToJson(report_));
    } else {
      PrintText(context.out(), report_);
    }
    const Tally& tally = report_.result.tally;
    if (tally.calls == 0) {
      context.err() << "fulcrum: no call was answered in the window; first error: "
                    << (tally.first_error.empty() ? "none" : tally.first_error) << "\n";
      return kFailed;
    }
    // A script that looks at nothing but the status must not take failed calls for a good run.
    if (tally.error_count > 0 || tally.mismatches > 0) {
      context.err() << absl::StrFormat("fulcrum: %d calls failed, %d replies were wrong\n",
                                       tally.error_count, tally.mismatches);
      return kFailed;
    }
    return kOk;
  }

 private:
  absl::Status Check() {
    const BenchOptions& o = report_.options;
    if (o.clients < 1 || o.clients > 100000 || o.rows < 1 || o.payloads < 1 || o.burst < 1) {
      return absl::InvalidArgumentError(
          "--clients (1..100000), --rows, --payloads and --burst: expected at least 1");
    }
    if (!(o.seconds > 0) || !(o.warmup >= 0) || !(o.rate >= 0)) {
      return absl::InvalidArgumentError("--seconds must be above 0, --warmup and --rate not below");
    }
    if (!(o.verify_sample >= 0 && o.verify_sample <= 1)) {
      return absl::InvalidArgumentError("--verify-sample: expected 0..1");
    }
    if (o.weights.empty() != o.tensor.empty() || (!o.weights.empty() && o.shards.size() != 1)) {
      return absl::InvalidArgumentError(
          "--weights and --tensor go together, with exactly one --shard");
    }
    absl::Status status = ParsePolicyWord(o.policy).status();
    status.Update(ParseStepWord(o.step).status());
    status.Update(ParseDTypeWord(o.output_type).status());
    return status;
  }

  absl::Status FindShards(const Context& context) {
    const auto list = client_->ListShards({}, context.Call());
    if (!list.ok()) return list.status();
    for (const std::string& name : report_.options.shards) {
      const auto found = std::find_if(list->shards().begin(), list->shards().end(),
                                      [&](const v1::Shard& shard) { return shard.name() == name; });
      if (found == list->shards().end()) {
        return absl::NotFoundError(absl::StrCat("no shard ", name));
      }
      shards_.push_back(*found);
    }
    return absl::OkStatus();
  }

  absl::Status CheckSizes(const v1::Limits& limits) const {
    const BenchOptions& o = report_.options;
    for (const v1::Shard& shard : shards_) {
      if (absl::Status status = CheckCallSize(limits, *ParseStepWord(o.step), o.rows, shard.k(),
                                              static_cast<int64_t>(SizeOf(DType::kBf16)));
          !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  // One request per payload and shard (or per payload, all shards together), shards innermost.
  absl::Status MakeCalls(std::vector<BenchCall>* calls) {
    const BenchOptions& o = report_.options;
    for (int p = 0; p < o.payloads; ++p) {
      for (const v1::Shard& shard : shards_) {
        const int payload = static_cast<int>(activations_.size());
        const Activations random =
            RandomActivations(o.seed * 1000003 + static_cast<uint64_t>(p), o.rows, shard.k());
        activations_.push_back(ToBf16(random));
        auto request = std::make_shared<v1::ProjectRequest>();
        request->set_rows(o.rows);
        request->set_activations(random.bytes);
        request->set_policy(*ParsePolicyWord(o.policy));
        request->set_step(*ParseStepWord(o.step));
        request->set_output_type(*ParseDTypeWord(o.output_type));
        if (o.together) {
          for (const v1::Shard& each : shards_) {
            if (each.k() != shard.k()) {
              return absl::InvalidArgumentError(
                  absl::StrFormat("--together: shards must share K; %s has %d, %s has %d",
                                  shard.name(), shard.k(), each.name(), each.k()));
            }
            request->add_shards(each.name());
          }
        } else {
          request->add_shards(shard.name());
        }
        calls->push_back({std::move(request), payload});
        if (o.together) break;
      }
    }
    return absl::OkStatus();
  }

  // The references of class exact, before there is any company to share a batch with.
  absl::Status RecordExact(const std::vector<BenchCall>& calls, absl::Duration timeout) {
    client::CallOptions options;
    options.timeout = timeout;
    for (const BenchCall& call : calls) {
      v1::ProjectRequest request = *call.request;
      request.set_policy(v1::POLICY_EXACT);
      const auto reply = client_->Project(request, options);
      if (!reply.ok()) return reply.status();
      std::vector<int> unused;
      checker_.Check(call.payload, *reply, &unused);
    }
    return absl::OkStatus();
  }

  // A rejected reference turns every reply that was equal to it into a mismatch.
  void AskOracle() {
    const BenchOptions& o = report_.options;
    const DType type = o.output_type == "f32" ? DType::kF32 : DType::kBf16;
    Tally& tally = report_.result.tally;
    std::vector<std::string> notes;
    for (const v1::Shard& shard : shards_) {
      const auto source =
          o.weights.empty() ? SyntheticSourceOf(shard) : OpenTensor(o.weights, o.tensor);
      if (!source.ok()) {
        notes.emplace_back(source.status().message());
        continue;
      }
      const auto compared =
          checker_.CompareWithOracle(shard.name(), **source, activations_, type, o.oracle_outputs);
      if (!compared.ok()) {
        notes.emplace_back(compared.status().message());
        continue;
      }
      report_.oracle_elements += compared->elements;
      for (const int reference : compared->rejected) {
        tally.mismatches = std::min(tally.verified, tally.mismatches + tally.equal_to[reference]);
      }
      notes.push_back(compared->rejected.empty() ? absl::StrFormat("%s: %d elements equal",
                                                                   shard.name(), compared->elements)
                                                 : compared->first);
    }
    for (const std::string& note : notes) {
      absl::StrAppend(&report_.oracle, report_.oracle.empty() ? "" : "; ", note);
    }
  }

  BenchReport report_;
  client::Client* client_ = nullptr;
  std::vector<v1::Shard> shards_;
  std::vector<Bits> activations_;  // by payload
  ReplyChecker checker_;
};

}  // namespace

std::unique_ptr<Command> MakeBench() { return std::make_unique<Bench>(); }

}  // namespace fulcrum::cli
