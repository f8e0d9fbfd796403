// What a node makes of calls of one row on one fp8 shard, by default a gate/up projection: how much
// more 32 callers get than one, how large their batches are and how busy the device is, in process
// and over gRPC on loopback, there beside a bare echo with the same messages in the same run.
// Usage: bench_end_to_end [--backend=auto] [--shape=17408x5120] [--seconds=2] [--exact]
// The family's lever is open (one_pass), as an operator would have it; --exact leaves it closed.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/weights/synthetic.h"
#include "scheduler/call.h"
#include "scheduler/scheduler.h"
#include "scheduler/shard_store.h"
#include "service/bench/child_server.h"
#include "service/bench/echo_server.h"
#include "service/bench/project_loop.h"
#include "service/server.h"

namespace {

using namespace fulcrum;           // NOLINT: a program of one file
using namespace fulcrum::service;  // NOLINT

constexpr char kShard[] = "models/bench/shards/gate_up";
constexpr int kManyCallers = 32;

struct Options {
  std::string backend = "auto";
  int64_t n = 17408, k = 5120;
  double seconds = 2;
  bool exact = false;
  std::string serve;  // what a child serves

  std::string ForChild() const {
    return absl::StrCat("--backend=", backend, " --shape=", n, "x", k, exact ? " --exact" : "");
  }
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> part = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string value = part.size() > 1 ? part[1] : "";
    const std::vector<std::string> shape = absl::StrSplit(value, 'x');
    bool ok = true;
    if (part[0] == "--backend") {
      options->backend = value;
    } else if (part[0] == "--shape") {
      ok = shape.size() == 2 && absl::SimpleAtoi(shape[0], &options->n) &&
           absl::SimpleAtoi(shape[1], &options->k) && options->n > 0 && options->k > 0;
    } else if (part[0] == "--seconds") {
      ok = absl::SimpleAtod(value, &options->seconds) && options->seconds > 0;
    } else if (part[0] == "--exact") {
      options->exact = true;
    } else if (part[0] == "--serve") {
      options->serve = value;
    } else {
      ok = false;
    }
    if (!ok) return false;
  }
  return true;
}

absl::StatusOr<std::unique_ptr<Server>> StartNode(const Options& options) {
  Config config;
  config.listen = "127.0.0.1:0";
  config.metrics_listen = "off";
  config.backend = options.backend;
  config.log_level = "warn";
  if (!options.exact) config.levers["m16_tc"] = "ffn_gate_up";
  auto server = Server::Start(config, {});
  if (!server.ok()) return server.status();
  if (absl::Status s = (*server)->WaitLoaded(); !s.ok()) return s;
  auto source = SyntheticWeight({.name = "gate_up", .n = options.n, .k = options.k}, 1);
  if (!source.ok()) return source.status();
  LoadRequest load;
  load.name = kShard;
  load.family = Family::kFfnGateUp;
  load.source = *std::move(source);
  if (auto shard = (*server)->shards().Load(load); !shard.ok()) return shard.status();
  return server;
}

// What the batches of a run were, added up call by call: every call has one row.
struct Batches {
  std::atomic<int64_t> calls{0}, batch_rows{0};
  std::atomic<int64_t> kernel_ns{0};  // each call's share of its launch
};

// A caller that has no wire: activations that are always the same, outputs that nobody keeps.
class InProcessCall : public Call {
 public:
  InProcessCall(Batches& batches, std::shared_ptr<const Shard> shard, CallDone done)
      : batches_(batches), done_(std::move(done)) {
    rows = 1;
    client = "bench";
    payload_bytes = (shard->k() + shard->n()) * 2;
    arrived = absl::Now();
    shards.push_back(std::move(shard));
  }
  void Gather(uint16_t* out) override {
    for (int64_t i = 0; i < shards[0]->k(); ++i) {
      out[i] = static_cast<uint16_t>(0x3c00 + i * 37 % 512);
    }
  }
  void Complete(const CallResult& result) override {
    if (result.status.ok()) {
      const Provenance& of = result.provenance;
      const double kernel = of.stages[static_cast<size_t>(Stage::kKernel)];
      ++batches_.calls;
      batches_.batch_rows += of.batch_rows;
      batches_.kernel_ns += static_cast<int64_t>(kernel * 1e9 / std::max(of.batch_rows, 1));
    }
    done_({.ok = result.status.ok()});
  }

 private:
  Batches& batches_;
  const CallDone done_;
};

struct InProcess {
  double calls_per_second = 0, mean_batch_rows = 0, busy = 0, p50_us = 0;
  bool ok = false;
};

InProcess RunInProcess(Server& node, const Options& options, int callers) {
  InProcess out;
  auto shard = node.shards().Find(kShard);
  if (!shard.ok()) return out;
  Batches batches;
  const auto begin = absl::Now();
  const LoopResult result =
      RunClosedLoop({.in_flight = callers, .seconds = options.seconds}, [&](int, CallDone done) {
        std::shared_ptr<Call> call =
            std::make_shared<InProcessCall>(batches, *shard, std::move(done));
        if (const absl::Status s = node.scheduler().Submit(call); !s.ok()) {
          std::fprintf(stderr, "bench_end_to_end: %s\n", s.ToString().c_str());
          call->Complete({.status = s});
        }
      });
  const double wall = absl::ToDoubleSeconds(absl::Now() - begin);  // warm-up too, as the counts
  out.ok = result.errors == 0 && !result.latency_us.empty();
  out.calls_per_second = result.CallsPerSecond();
  out.p50_us = result.Percentile(0.5);
  out.mean_batch_rows = static_cast<double>(batches.batch_rows) /
                        static_cast<double>(std::max<int64_t>(batches.calls, 1));
  out.busy = static_cast<double>(batches.kernel_ns) * 1e-9 / wall;
  return out;
}

int MeasureInProcess(const Options& options) {
  const auto node = StartNode(options);
  if (!node.ok()) {
    std::fprintf(stderr, "bench_end_to_end: %s\n", node.status().ToString().c_str());
    return 1;
  }
  std::printf("%-24s %10s %10s %10s %8s\n", "in process", "rows/s", "p50_us", "mean_batch", "busy");
  double one = 0;
  for (const int callers : {1, 8, kManyCallers}) {
    const InProcess run = RunInProcess(**node, options, callers);
    if (!run.ok) return 1;
    if (callers == 1) one = run.calls_per_second;
    std::printf("%2d callers               %10.0f %10.1f %10.1f %7.0f%%   %.1f times one\n",
                callers, run.calls_per_second, run.p50_us, run.mean_batch_rows, 100 * run.busy,
                run.calls_per_second / one);
  }
  return 0;
}

int MeasureOverGrpc(const Options& options) {
  const int64_t reply_bytes = options.n * 2;
  const Target node = {SpawnServer("node", options.ForChild()), reply_bytes};
  const Target echo = {SpawnServer("echo", options.ForChild()), reply_bytes};
  if (node.address.empty() || echo.address.empty()) {
    std::fprintf(stderr, "bench_end_to_end: a server did not start\n");
    return 1;
  }
  const v1::ProjectRequest request = MakeRequest(kShard, 1, options.k);
  std::printf("%-24s %10s %10s %10s %10s\n", "over gRPC on loopback", "calls/s", "p50_us", "p99_us",
              "kernel_us");
  for (const int in_flight : {1, kManyCallers}) {
    const LoopOptions loop = {.in_flight = in_flight, .seconds = options.seconds};
    const LoopResult of_echo = RunProjectLoop(echo, request, loop);
    const LoopResult of_node = RunProjectLoop(node, request, loop);
    for (const auto& [name, result] : {std::pair("echo", &of_echo), std::pair("node", &of_node)}) {
      if (result->errors > 0 || result->latency_us.empty()) {
        std::fprintf(stderr, "bench_end_to_end: calls to the %s failed\n", name);
        return 1;
      }
      std::printf("%s, %2d in flight       %10.0f %10.1f %10.1f %10.1f\n", name, in_flight,
                  result->CallsPerSecond(), result->Percentile(0.5), result->Percentile(0.99),
                  result->mean_excluded_us);
    }
    std::printf("node over echo: calls/s %.2f, p50 without the kernel %.2f\n",
                of_node.CallsPerSecond() / of_echo.CallsPerSecond(),
                of_node.Percentile(0.5) / of_echo.Percentile(0.5));
  }
  return 0;
}

int ServeAs(const Options& options) {
  EndWithParent();
  if (options.serve == "node") {
    const auto node = StartNode(options);
    if (node.ok()) ServeForever((*node)->address());
    std::fprintf(stderr, "bench_end_to_end: %s\n", node.status().ToString().c_str());
    return 1;
  }
  const auto echo = StartEchoServer(EchoKind::kProto, options.n * 2);
  if (echo == nullptr) return 1;
  ServeForever(echo->address());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(
        stderr, "usage: bench_end_to_end [--backend=auto] [--shape=NxK] [--seconds=S] [--exact]\n");
    return 2;
  }
  SettleProcess();
  if (!options.serve.empty()) return ServeAs(options);
  std::printf("%ld x %ld fp8, calls of one row\n", static_cast<long>(options.n),
              static_cast<long>(options.k));
  const int in_process = MeasureInProcess(options);
  return in_process != 0 ? in_process : MeasureOverGrpc(options);
}
