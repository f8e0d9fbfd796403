// What the node adds to gRPC: Project calls of one row on one 1024x5120 fp8 shard, without the time
// their kernel took, against gRPC alone with the same messages (bench_echo.cc). Each server is a
// process of its own, as a node is: client and server of one process would share gRPC's pollers.
// The servers take turns, so that a slow minute of the machine is a slow minute of all.
// echo_arm is the echo with nothing but the node's arm between request and reply, its time taken
// off as the node's is: an arm that streams weights leaves cold caches behind, and what gRPC costs
// on those no node can avoid.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend_factory.h"
#include "kernels/weights/synthetic.h"
#include "scheduler/shard_store.h"
#include "service/bench/child_server.h"
#include "service/bench/echo_server.h"
#include "service/bench/project_loop.h"
#include "service/server.h"

namespace {

using namespace fulcrum;           // NOLINT: a program of one file
using namespace fulcrum::service;  // NOLINT

constexpr int64_t kN = 1024, kK = 5120, kReplyBytes = kN * 2;
constexpr char kShard[] = "models/bench/shards/k_proj";
constexpr int kRounds = 5;

struct Side {
  const char* name;
  Target target;
  std::vector<double> p50_us, p99_us, kernel_us, faults;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::StatusOr<std::unique_ptr<Server>> StartNode() {
  Config config;
  config.listen = "127.0.0.1:0";
  config.metrics_listen = "off";
  config.backend = "cpu";
  config.log_level = "warn";
  auto server = Server::Start(config, {});
  if (!server.ok()) return server.status();
  if (absl::Status s = (*server)->WaitLoaded(); !s.ok()) return s;
  auto source = SyntheticWeight({.name = "k_proj", .n = kN, .k = kK}, 1);
  if (!source.ok()) return source.status();
  LoadRequest load;
  load.name = kShard;
  load.family = Family::kAttnQkv;
  load.source = *std::move(source);
  if (auto shard = (*server)->shards().Load(load); !shard.ok()) return shard.status();
  return server;
}

// The work of echo_arm: one row through the arm that the node would choose.
absl::StatusOr<EchoWork> ArmWork() {
  auto backends = MakeBackends("cpu", {});
  if (!backends.ok()) return backends.status();
  const std::shared_ptr<Backend> backend = std::move(backends->front());
  auto source = SyntheticWeight({.name = "k_proj", .n = kN, .k = kK}, 1);
  if (!source.ok()) return source.status();
  auto weight = backend->Upload(**source);
  if (!weight.ok()) return weight.status();
  const auto arm = std::ranges::find(backend->ladder(), "cpu_w8a16_exact", &Arm::name);
  if (arm == backend->ladder().end()) return absl::NotFoundError("no arm cpu_w8a16_exact");
  const std::shared_ptr<LaunchSlot> slot = backend->NewSlot();
  const size_t outputs[] = {kReplyBytes};
  if (absl::Status s = slot->Reserve(kK * 2, outputs); !s.ok()) return s;
  return [=, weight = *std::move(weight)](const v1::ProjectRequest& request,
                                          v1::ProjectResponse* response) {
    std::memcpy(slot->activations(), request.activations().data(), kK * 2);
    const LaunchTarget target = {&*arm, weight.get()};
    const auto times = backend->Run(*slot, {.targets = {&target, 1}, .m = 1});
    response->mutable_provenance()->mutable_stages()->set_kernel(times.ok() ? times->kernel : 0);
  };
}

// What a child of this program does. It ends with its parent.
int ServeAs(std::string_view name) {
  EndWithParent();
  if (name == "node") {
    const auto node = StartNode();
    if (node.ok()) ServeForever((*node)->address());
    std::fprintf(stderr, "bench_overhead: %s\n", node.status().ToString().c_str());
    return 1;
  }
  EchoWork work;
  if (name == "echo_arm") {
    auto arm_work = ArmWork();
    if (!arm_work.ok()) {
      std::fprintf(stderr, "bench_overhead: %s\n", arm_work.status().ToString().c_str());
      return 1;
    }
    work = *std::move(arm_work);
  }
  const auto echo = StartEchoServer(name == "echo_raw" ? EchoKind::kRaw : EchoKind::kProto,
                                    kReplyBytes, std::move(work));
  if (echo == nullptr) return 1;
  ServeForever(echo->address());
}

// False when a call failed.
bool Measure(Side& side) {
  const LoopResult result =
      RunProjectLoop(side.target, MakeRequest(kShard, 1, kK), {.in_flight = 1, .seconds = 1});
  side.p50_us.push_back(result.Percentile(0.5));
  side.p99_us.push_back(result.Percentile(0.99));
  side.kernel_us.push_back(result.mean_excluded_us);
  side.faults.push_back(result.faults_per_call);
  if (result.errors == 0 && !result.latency_us.empty()) return true;
  std::fprintf(stderr, "bench_overhead: %ld of the calls to %s failed\n",
               static_cast<long>(result.errors), side.name);
  return false;
}

// Prints the table or the JSON line; the exit code.
int MeasureAll(std::span<Side> sides, bool json) {
  for (const Side& side : sides) {
    if (side.target.address.empty()) {
      std::fprintf(stderr, "bench_overhead: the %s server did not start\n", side.name);
      return 1;
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Side& side : sides) {
      if (!Measure(side)) return 1;
    }
  }
  const double node_us = Median(sides[0].p50_us), echo_us = Median(sides[1].p50_us);
  if (json) {
    std::printf(
        "{\"node_p50_us\":%.1f,\"node_kernel_us\":%.1f,\"echo_proto_p50_us\":%.1f,\"echo_raw_p50_"
        "us\":%.1f,"
        "\"echo_arm_p50_us\":%.1f,\"ratio\":%.3f,\"ratio_raw\":%.3f,\"ratio_arm\":%.3f,\"node_"
        "faults_per_call\":%.3f}\n",
        node_us, Median(sides[0].kernel_us), echo_us, Median(sides[2].p50_us),
        Median(sides[3].p50_us), node_us / echo_us, node_us / Median(sides[2].p50_us),
        node_us / Median(sides[3].p50_us), Median(sides[0].faults));
    return 0;
  }
  std::printf("%-12s %10s %10s %10s %12s   medians of %d rounds\n", "", "p50_us", "p99_us",
              "kernel_us", "faults/call", kRounds);
  for (const Side& side : sides) {
    std::printf("%-12s %10.1f %10.1f %10.1f %12.3f\n", side.name, Median(side.p50_us),
                Median(side.p99_us), Median(side.kernel_us), Median(side.faults));
  }
  std::printf("the node without its kernel time, over echo_proto: %.2f, over echo_arm: %.2f\n",
              node_us / echo_us, node_us / Median(sides[3].p50_us));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::string_view kServe = "--serve=";
  const std::string_view argument = argc == 2 ? argv[1] : "";
  const bool json = argument == "--json";
  SettleProcess();
  if (argument.substr(0, kServe.size()) == kServe) return ServeAs(argument.substr(kServe.size()));
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: bench_overhead [--json]\n");
    return 2;
  }
  Side sides[] = {{"node", {SpawnServer("node"), kReplyBytes}, {}, {}, {}, {}},
                  {"echo_proto", {SpawnServer("echo_proto"), kReplyBytes}, {}, {}, {}, {}},
                  {"echo_raw", {SpawnServer("echo_raw"), kReplyBytes}, {}, {}, {}, {}},
                  {"echo_arm", {SpawnServer("echo_arm"), kReplyBytes}, {}, {}, {}, {}}};
  return MeasureAll(sides, json);
}
