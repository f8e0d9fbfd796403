// What a node makes of calls of one row on one fp8 shard, by default a gate/up projection: how much
// more 32 callers get than one, how large their batches are and how busy the device is, in process
// and over gRPC on loopback, there beside a bare echo with the same messages in the same run.
// Usage: bench_end_to_end [--backend=auto] [--shape=17408x5120] [--seconds=2] [--slots=0] [--exact]
// The family's lever is open (one_pass), as an operator would have it; --exact leaves it closed.
// --slots: launch slots, 0 for the backend's preference.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "service/bench/child_server.h"
#include "service/bench/echo_server.h"
#include "service/bench/in_process.h"
#include "service/bench/project_loop.h"

namespace {

using namespace fulcrum;           // NOLINT: a program of one file
using namespace fulcrum::service;  // NOLINT

constexpr int kManyCallers = 32;

struct Options {
  BenchNode node;
  double seconds = 2;
  bool exact = false;
  std::string serve;  // what a child serves

  std::string ForChild() const {
    return absl::StrCat("--backend=", node.backend, " --shape=", node.n, "x", node.k,
                        " --slots=", node.slots, exact ? " --exact" : "");
  }
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> part = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string value = part.size() > 1 ? part[1] : "";
    bool ok = true;
    if (part[0] == "--backend") {
      options->node.backend = value;
    } else if (part[0] == "--shape") {
      ok = ParseShape(value, &options->node);
    } else if (part[0] == "--seconds") {
      ok = absl::SimpleAtod(value, &options->seconds) && options->seconds > 0;
    } else if (part[0] == "--slots") {
      ok = absl::SimpleAtoi(value, &options->node.slots) && options->node.slots >= 0;
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
  BenchNode node = options.node;
  if (!options.exact) node.m16_tc = "ffn_gate_up";
  return StartBenchNode(node);
}

int MeasureInProcess(const Options& options) {
  const auto node = StartNode(options);
  if (!node.ok()) {
    std::fprintf(stderr, "bench_end_to_end: %s\n", node.status().ToString().c_str());
    return 1;
  }
  std::printf("%-24s %10s %10s %10s %8s\n", "in process", "rows/s", "p50_us", "mean_batch", "busy");
  auto shard = (*node)->shards().Find(kBenchShard);
  if (!shard.ok()) return 1;
  double one = 0;
  for (const int callers : {1, 8, kManyCallers}) {
    InProcessLoad load((*node)->scheduler(), *shard, callers);
    load.Record(0.5);  // warm
    const CallsRecorded run = load.Record(options.seconds);
    if (!run.status.ok() || run.calls.empty()) {
      std::fprintf(stderr, "bench_end_to_end: %zu calls ended, %s\n", run.calls.size(),
                   run.status.ToString().c_str());
      return 1;
    }
    const double rows = run.CallsPerSecond();
    if (callers == 1) one = rows;
    const std::vector<float> us = run.LatenciesUs();
    std::printf("%2d callers               %10.0f %10.1f %10.1f %7.0f%%   %.1f times one; us:",
                callers, rows, us[us.size() / 2],
                static_cast<double>(run.batch_rows) / static_cast<double>(run.calls.size()),
                100 * run.all(Stage::kKernel) / run.seconds, rows / one);
    for (const Stage stage :
         {Stage::kQueue, Stage::kGather, Stage::kCopyIn, Stage::kKernel, Stage::kCopyOut}) {
      std::printf(" %s %.1f", std::string(Name(stage)).c_str(), run.MeanUs(stage));
    }
    std::printf("\n");
  }
  return 0;
}

int MeasureOverGrpc(const Options& options) {
  const int64_t reply_bytes = options.node.n * 2;
  const Target node = {SpawnServer("node", options.ForChild()), reply_bytes};
  const Target echo = {SpawnServer("echo", options.ForChild()), reply_bytes};
  if (node.address.empty() || echo.address.empty()) {
    std::fprintf(stderr, "bench_end_to_end: a server did not start\n");
    return 1;
  }
  const v1::ProjectRequest request = MakeRequest(kBenchShard, 1, options.node.k);
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
  const auto echo = StartEchoServer(EchoKind::kProto, options.node.n * 2);
  if (echo == nullptr) return 1;
  ServeForever(echo->address());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: bench_end_to_end [--backend=auto] [--shape=NxK] [--seconds=S] [--slots=S] "
                 "[--exact]\n");
    return 2;
  }
  SettleProcess();
  if (!options.serve.empty()) return ServeAs(options);
  std::printf("%ld x %ld fp8, calls of one row\n", static_cast<long>(options.node.n),
              static_cast<long>(options.node.k));
  const int in_process = MeasureInProcess(options);
  return in_process != 0 ? in_process : MeasureOverGrpc(options);
}
