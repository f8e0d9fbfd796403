// What metrics cost a call: every observation that one decode call of one row makes, by 1 to 32
// threads on the same series, with and without a scraper that never pauses. Nothing on a call's
// path takes a lock (metrics.h): what grows with threads is the traffic of shared cache lines, and
// a scrape holds up none of them.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/backend_factory.h"
#include "kernels/weights/synthetic.h"
#include "scheduler/shard_store.h"
#include "service/grpc_metrics.h"
#include "service/metrics.h"

namespace {

using namespace fulcrum;           // NOLINT: a program of one file
using namespace fulcrum::service;  // NOLINT

constexpr int kCalls = 200000;  // of all threads together

void ObserveOneCall(Metrics& metrics, const Arm& arm, const Shard& shard, int method) {
  const Phase phase = PhaseOf(shard.family);
  metrics.GrpcStarted(method);
  metrics.OnQueue(1, 2048);
  metrics.OnCallQueued(arm, phase, 20e-6);
  metrics.OnQueue(0, 0);
  metrics.OnLaunch({.arm = &arm,
                    .shard = &shard,
                    .rows = 1,
                    .gather = 1e-6,
                    .copy_in = 5e-6,
                    .kernel = 50e-6,
                    .copy_out = 5e-6});
  metrics.CallAnswered(CallMethod::kProject, absl::StatusCode::kOk);
  metrics.GrpcHandled(method, absl::StatusCode::kOk);
  metrics.CallStage(arm, phase, Stage::kAdmit, 3e-6);
  metrics.CallStage(arm, phase, Stage::kReply, 10e-6);
  metrics.GrpcTook(method, 100e-6);
}

// Nanoseconds of wall time a call, each thread's own.
double Measure(Metrics& metrics, const Arm& arm, const Shard& shard, int threads, bool scraped) {
  const int method = metrics.GrpcMethod("/fulcrum.v1.ProjectionService/Project");
  std::atomic<bool> done = false;
  std::thread scraper([&] {
    while (scraped && !done) metrics.Text();
  });
  const int calls = kCalls / threads;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> callers;
  for (int i = 0; i < threads; ++i) {
    callers.emplace_back([&] {
      for (int call = 0; call < calls; ++call) ObserveOneCall(metrics, arm, shard, method);
    });
  }
  for (std::thread& caller : callers) caller.join();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  done = true;
  scraper.join();
  return wall.count() * 1e9 / (static_cast<double>(calls) * threads);
}

int Run() {
  auto backends = MakeBackends("cpu", {});
  if (!backends.ok()) return 1;
  Backend& backend = *backends->front();
  const auto source = SyntheticWeight({.name = "w", .n = 128, .k = 128}, 1);
  if (!source.ok()) return 1;
  const auto weight = backend.Upload(**source);
  if (!weight.ok()) return 1;
  Shard shard;
  shard.family = Family::kFfnDown;
  shard.weight = *weight;
  Metrics metrics({.ladders = {backend.ladder()},
                   .devices = {backend.device().id},
                   .version = FULCRUM_VERSION,
                   .grpc_methods = NodeGrpcMethods()});
  std::printf("%8s %16s %16s   ns of the machine a call, %d hardware threads\n", "threads",
              "unscraped", "scraped", static_cast<int>(std::thread::hardware_concurrency()));
  for (const int threads : {1, 2, 4, 8, 16, 32}) {
    const Arm& arm = backend.ladder().front();
    const double alone = Measure(metrics, arm, shard, threads, false);
    std::printf("%8d %16.0f %16.0f\n", threads, alone, Measure(metrics, arm, shard, threads, true));
  }
  return 0;
}

}  // namespace

int main() { return Run(); }
