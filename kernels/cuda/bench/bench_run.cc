// Times CudaBackend::Run, from the call to outputs in host memory, beside the bare kernel: alone
// and with several slots in flight, as it runs and with each of its means left out. Usage:
// fulcrum_bench_run [--arm=w8a16_gemm_m32] [--m=1,8,32] [--slots=1,2,3,4,8] [--shape=NxK[,NxK...]]
// [--milliseconds=60] [--targets=1]
// Weights rotate over copies of 150 MB together, three times the L2. "bare" is the same arm in a
// graph of 60 launches; "busy" is launches a second times bare. Every slot's last outputs are
// compared, byte by byte, with those of the arm run by itself before a line is printed.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/bench/bench_weight.h"
#include "kernels/bench/command_line.h"
#include "kernels/bench/report.h"
#include "kernels/cuda/runtime/cuda_backend.h"
#include "kernels/cuda/runtime/graph_cache.h"

namespace fulcrum::bench {
namespace {

using Clock = std::chrono::steady_clock;
using cuda::CudaBackend;
using cuda::RunOptions;

struct Options {
  std::string arm = "w8a16_gemm_m32";
  std::vector<int> rows = {1, 8, 32}, slots = {1, 2, 3, 4, 8};
  std::vector<Shape> shapes = {{17408, 5120}, {1024, 5120}};
  int milliseconds = 60, targets = 1;
};

bool Parse(int argc, char** argv, Options* options) {
  CommandLine line("fulcrum_bench_run");
  line.Text("--arm", &options->arm);
  line.Numbers("--m", &options->rows);
  line.Numbers("--slots", &options->slots);
  line.Number("--milliseconds", &options->milliseconds);
  line.Number("--targets", &options->targets);
  line.Shapes("--shape", &options->shapes);
  return line.Parse(argc, argv);
}

// What is measured for one shape and M: `targets` weights a launch, taken in turn.
struct Work {
  CudaBackend* backend;
  const Arm* arm;
  int targets;
  int m = 0;
  std::vector<std::shared_ptr<ResidentWeight>> weights = {};  // all of the same content
  std::vector<uint16_t> x = {};
  std::vector<std::byte> expected = {};  // of one target
  double bare_us = 0;                    // all targets of a launch

  const WeightSpec& spec() const { return weights.front()->spec(); }
};

// Runs the arm by itself: the bytes of one target, and the time of a launch in a graph.
bool MeasureBare(Work* work) {
  constexpr int kLaunches = 60, kReplays = 9;
  const WeightSpec& spec = work->spec();
  const int64_t pitch = cuda::PaddedK(spec.k);
  auto x = cuda::DeviceBuffer::Make(0, static_cast<size_t>(work->m * pitch) * 2);
  auto y = cuda::DeviceBuffer::Make(0, static_cast<size_t>(work->m * spec.n) * 2);
  auto workspace = cuda::DeviceBuffer::Make(0, cuda::kWorkspaceBytes);
  auto scratch = cuda::DeviceBuffer::Make(0, cuda::kScratchBytes);
  auto stream = cuda::MakeStream(0, cuda::Priority::kLaunches);
  if (!x.ok() || !y.ok() || !workspace.ok() || !scratch.ok() || !stream.ok()) return false;
  absl::StatusOr<cuda::CudaContext> facts = cuda::ContextOf(0, work->backend->device());
  if (!facts.ok()) return false;
  cuda::CudaContext context = *facts;
  context.stream = stream->get();
  context.workspace = workspace->data();
  context.workspace_bytes = cuda::kWorkspaceBytes;
  context.scratch = scratch->data();
  context.scratch_bytes = cuda::kScratchBytes;
  bool ok =
      cudaMemset(workspace->data(), cuda::kEmptySentinelByte, workspace->size()) == cudaSuccess &&
      cudaMemset(x->data(), 0, x->size()) == cudaSuccess &&
      cudaMemcpy2D(x->data(), static_cast<size_t>(pitch) * 2, work->x.data(),
                   static_cast<size_t>(spec.k) * 2, static_cast<size_t>(spec.k) * 2,
                   static_cast<size_t>(work->m), cudaMemcpyHostToDevice) == cudaSuccess;
  const auto enqueue = [&]() -> absl::Status {
    for (int i = 0; i < kLaunches * work->targets; ++i) {
      absl::Status s = work->arm->run(
          {.weight = work->weights[static_cast<size_t>(i) % work->weights.size()].get(),
           .activations = x->data(),
           .activation_pitch = pitch,
           .output = y->data(),
           .output_pitch = spec.n,
           .m = work->m,
           .context = &context});
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  };
  const auto graph = cuda::Capture(0, stream->get(), enqueue);
  cudaEvent_t begin = nullptr, end = nullptr;
  ok = ok && graph.ok() && cudaEventCreate(&begin) == cudaSuccess &&
       cudaEventCreate(&end) == cudaSuccess;
  std::vector<double> us;
  for (int i = -3; ok && i < kReplays; ++i) {
    float ms = 0;
    ok = cudaEventRecord(begin, stream->get()) == cudaSuccess &&
         cudaGraphLaunch(graph->get(), stream->get()) == cudaSuccess &&
         cudaEventRecord(end, stream->get()) == cudaSuccess &&
         cudaEventSynchronize(end) == cudaSuccess &&
         cudaEventElapsedTime(&ms, begin, end) == cudaSuccess;
    if (i >= 0) us.push_back(ms * 1e3 / kLaunches);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  work->expected.resize(y->size());
  ok = ok && cudaMemcpy(work->expected.data(), y->data(), y->size(), cudaMemcpyDeviceToHost) ==
                 cudaSuccess;
  if (ok) work->bare_us = Quantile(us, 0.5);
  return ok;
}

struct Caller {
  std::unique_ptr<LaunchSlot> slot;
  std::vector<double> us;
  LaunchTimes sum;
  bool ok = true;
};

// Launches one after another until `stop`; `counts`: whether they are measured.
void Call(const Work& work, Caller* caller, size_t first, const std::atomic<bool>& counts,
          const std::atomic<bool>& stop) {
  std::vector<LaunchTarget> targets(static_cast<size_t>(work.targets), {.arm = work.arm});
  for (size_t next = first; caller->ok && !stop.load(std::memory_order_relaxed);) {
    for (LaunchTarget& target : targets) {
      target.weight = work.weights[next++ % work.weights.size()].get();
    }
    const Clock::time_point begin = Clock::now();
    const auto times = work.backend->Run(*caller->slot, {.targets = targets, .m = work.m});
    const Clock::time_point end = Clock::now();
    caller->ok = times.ok();
    if (!times.ok()) std::fprintf(stderr, "%s\n", times.status().ToString().c_str());
    if (!counts.load(std::memory_order_relaxed) || !times.ok()) continue;
    caller->us.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
    caller->sum.copy_in += times->copy_in;
    caller->sum.kernel += times->kernel;
    caller->sum.copy_out += times->copy_out;
  }
}

bool Measure(const Work& work, const char* name, const RunOptions& run_options, int slots,
             int milliseconds) {
  work.backend->set_run_options(run_options);
  const std::vector<size_t> bytes(static_cast<size_t>(work.targets), work.expected.size());
  std::vector<Caller> callers(static_cast<size_t>(slots));
  for (Caller& caller : callers) {
    caller.slot = work.backend->NewSlot();
    if (!caller.slot->Reserve(work.x.size() * 2, bytes).ok()) return false;
    std::memcpy(caller.slot->activations(), work.x.data(), work.x.size() * 2);
  }
  std::atomic<bool> counts = false, stop = false;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < callers.size(); ++i) {
    threads.emplace_back([&, i] { Call(work, &callers[i], i, counts, stop); });
  }
  // Until each weight has its graph.
  const double once_us = work.bare_us * slots + 60;
  const double warm_us = once_us * static_cast<double>(work.weights.size()) * 20;
  std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(warm_us)));
  const Clock::time_point begin = Clock::now();
  counts = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  counts = false;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  Caller all;
  for (Caller& caller : callers) {
    all.us.insert(all.us.end(), caller.us.begin(), caller.us.end());
    all.sum.copy_in += caller.sum.copy_in;
    all.sum.kernel += caller.sum.kernel;
    all.sum.copy_out += caller.sum.copy_out;
    all.ok = all.ok && caller.ok;
    for (size_t i = 0; i < bytes.size(); ++i) {
      all.ok = all.ok && std::memcmp(caller.slot->output(i), work.expected.data(), bytes[i]) == 0;
    }
  }
  if (all.us.empty()) return false;
  const auto count = static_cast<double>(all.us.size());
  std::printf("  %-22s %d  %8.2f %8.2f  %8.0f %9.0f  %5.1f   %7.2f %7.2f %7.2f%s\n", name, slots,
              Quantile(all.us, 0.5), Quantile(all.us, 0.99), count / seconds,
              count * work.m / seconds, 100 * count * work.bare_us * 1e-6 / seconds,
              all.sum.copy_in / count * 1e6, all.sum.kernel / count * 1e6,
              all.sum.copy_out / count * 1e6, all.ok ? "" : "  WRONG");
  std::fflush(stdout);
  return all.ok;
}

bool BenchShape(CudaBackend& backend, const Arm& arm, int64_t n, int64_t k,
                const Options& options) {
  const BenchWeight source({.name = "bench", .format = arm.format, .n = n, .k = k}, 1);
  Work work = {.backend = &backend, .arm = &arm, .targets = options.targets};
  const auto copies = std::max<int64_t>(2, 150000000 / backend.ResidentBytes(source.spec()));
  while (static_cast<int64_t>(work.weights.size()) < copies) {
    auto weight = backend.Upload(source);
    if (!weight.ok()) {
      std::fprintf(stderr, "%s\n", weight.status().ToString().c_str());
      return false;
    }
    work.weights.push_back(*std::move(weight));
  }
  using Way = RunOptions::Way;
  const std::pair<const char*, RunOptions> variants[] = {
      {"as it runs", {}},
      {"direct", {.way = Way::kDirect}},
      {"direct, no graphs", {.way = Way::kDirect, .graphs = false}},
      {"direct, neither", {.way = Way::kDirect, .graphs = false, .programmatic = false}},
      {"outputs all copied", {.host_outputs = false}},
      {"overlapped", {.way = Way::kOverlapped}},
      {"overlapped, plain", {.way = Way::kOverlapped, .programmatic = false}}};
  bool ok = true;
  for (const int m : options.rows) {
    if (m < arm.m_min || m > arm.m_max || m > arm.rows_per_launch) continue;
    work.m = m;
    work.x = BenchActivations(m, k, k);
    if (!MeasureBare(&work)) return false;
    std::printf("%s, %d of %lld x %lld, M %d: bare %.2f us\n", options.arm.c_str(), options.targets,
                static_cast<long long>(n), static_cast<long long>(k), m, work.bare_us);
    std::printf(
        "  %-22s slots   p50 us   p99 us  launch/s    rows/s  busy %%  in, kernel, out us\n", "");
    for (const auto& [name, run_options] : variants) {
      for (const int slots : options.slots) {
        ok = Measure(work, name, run_options, slots, options.milliseconds) && ok;
      }
    }
  }
  return ok;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) return 2;
  auto backends = cuda::MakeCudaBackends(0);
  if (!backends.ok()) {
    std::fprintf(stderr, "%s\n", backends.status().ToString().c_str());
    return 1;
  }
  auto& backend = static_cast<CudaBackend&>(*backends->front());
  const auto ladder = backend.ladder();
  const auto arm = std::ranges::find(ladder, options.arm, &Arm::name);
  if (arm == ladder.end()) {
    std::fprintf(stderr, "fulcrum_bench_run: the ladder has no %s\n", options.arm.c_str());
    return 2;
  }
  bool ok = true;
  for (const auto& [n, k] : options.shapes) ok = BenchShape(backend, *arm, n, k, options) && ok;
  if (!ok) std::fprintf(stderr, "fulcrum_bench_run: something failed\n");
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace fulcrum::bench

int main(int argc, char** argv) { return fulcrum::bench::Main(argc, argv); }
