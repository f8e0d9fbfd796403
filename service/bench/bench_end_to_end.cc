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
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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

// A caller that has no wire. Outputs are nobody's; a thread that serves several callers looks when
// they have ended, as an engine's loop would, so that no slot's thread does a caller's work.
class InProcessCaller {
 public:
  InProcessCaller(Scheduler& scheduler, std::shared_ptr<const Shard> shard, OnIdle on_idle)
      : scheduler_(scheduler),
        shard_(std::move(shard)),
        on_idle_(on_idle),
        row_(static_cast<size_t>(shard_->k()), uint16_t{0x3c00}) {}

  struct Sums {
    int64_t calls = 0, batch_rows = 0;
    double kernel_seconds = 0;  // each call's share of its launch
    std::vector<float> latency_us;
    bool failed = false;
  };

  void Start() {
    running_.store(true, std::memory_order_relaxed);
    begin_ = absl::Now();
    std::shared_ptr<Call> call = std::make_shared<OneRow>(*this);
    if (const absl::Status s = scheduler_.Submit(call, on_idle_); !s.ok()) {
      CallResult refused;
      refused.status = s;
      call->Complete(refused);
    }
  }
  bool running() const { return running_.load(std::memory_order_acquire); }
  // Of the call that has ended.
  void AddTo(Sums& sums) const {
    if (!ok_) {
      sums.failed = true;
      return;
    }
    ++sums.calls;
    sums.batch_rows += batch_rows_;
    sums.kernel_seconds += kernel_seconds_ / batch_rows_;
    sums.latency_us.push_back(static_cast<float>(absl::ToDoubleMicroseconds(end_ - begin_)));
  }

 private:
  class OneRow : public Call {
   public:
    explicit OneRow(InProcessCaller& caller) : caller_(caller) {
      rows = 1;
      client = "bench";
      payload_bytes = (caller.shard_->k() + caller.shard_->n()) * 2;
      arrived = caller.begin_;
      shards.push_back(caller.shard_);
    }
    void Gather(uint16_t* out) override {
      std::memcpy(out, caller_.row_.data(), caller_.row_.size() * 2);
    }
    void Complete(const CallResult& result) override {
      const Provenance& of = result.provenance;
      caller_.ok_ = result.status.ok();
      caller_.batch_rows_ = std::max(of.batch_rows, 1);
      caller_.kernel_seconds_ = of.stages[static_cast<size_t>(Stage::kKernel)];
      caller_.end_ = absl::Now();
      caller_.running_.store(false, std::memory_order_release);
    }

   private:
    InProcessCaller& caller_;
  };

  Scheduler& scheduler_;
  const std::shared_ptr<const Shard> shard_;
  const OnIdle on_idle_;
  const std::vector<uint16_t> row_;
  absl::Time begin_, end_;
  bool ok_ = false;
  int batch_rows_ = 1;
  double kernel_seconds_ = 0;
  std::atomic<bool> running_{false};
};

struct InProcess {
  double calls_per_second = 0, mean_batch_rows = 0, busy = 0, p50_us = 0;
  bool ok = false;
};

constexpr int kCallersAThread = 8;

InProcess RunInProcess(Server& node, const Options& options, int callers) {
  InProcess out;
  auto shard = node.shards().Find(kShard);
  if (!shard.ok()) return out;
  const int threads = (callers + kCallersAThread - 1) / kCallersAThread;
  std::atomic<bool> recording{false}, stop{false};
  std::vector<InProcessCaller::Sums> sums(static_cast<size_t>(threads));
  std::vector<std::thread> clients;
  for (int t = 0; t < threads; ++t) {
    clients.emplace_back([&, t] {
      std::vector<std::unique_ptr<InProcessCaller>> own;
      for (int i = t; i < callers; i += threads) {
        // A lone caller waits for its call, and may run it itself.
        own.push_back(std::make_unique<InProcessCaller>(
            node.scheduler(), *shard, callers == 1 ? OnIdle::kRunHere : OnIdle::kHandOver));
        own.back()->Start();
      }
      for (size_t live = own.size(); live > 0;) {
        for (auto& caller : own) {
          if (caller == nullptr || caller->running()) continue;
          if (recording) caller->AddTo(sums[static_cast<size_t>(t)]);
          if (stop) {
            caller = nullptr;
            --live;
          } else {
            caller->Start();
          }
        }
      }
    });
  }
  absl::SleepFor(absl::Milliseconds(500));
  recording = true;
  const absl::Time begin = absl::Now();
  absl::SleepFor(absl::Seconds(options.seconds));
  recording = false;
  const double wall = absl::ToDoubleSeconds(absl::Now() - begin);
  stop = true;
  for (std::thread& client : clients) client.join();

  InProcessCaller::Sums all;
  for (const InProcessCaller::Sums& of : sums) {
    all.calls += of.calls;
    all.batch_rows += of.batch_rows;
    all.kernel_seconds += of.kernel_seconds;
    all.failed = all.failed || of.failed;
    all.latency_us.insert(all.latency_us.end(), of.latency_us.begin(), of.latency_us.end());
  }
  if (all.failed || all.calls == 0) return out;
  std::sort(all.latency_us.begin(), all.latency_us.end());
  out.ok = true;
  out.calls_per_second = static_cast<double>(all.calls) / wall;
  out.p50_us = all.latency_us[all.latency_us.size() / 2];
  out.mean_batch_rows = static_cast<double>(all.batch_rows) / static_cast<double>(all.calls);
  out.busy = all.kernel_seconds / wall;
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
