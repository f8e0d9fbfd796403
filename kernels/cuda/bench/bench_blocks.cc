// How the thread blocks of the fp8 tensor-core arms fill the device: how many were resident on an
// SM at once, how many waves that makes, and how long at the end some SM had nothing left. Measured
// by the blocks themselves (trace_blocks.h), not derived. Usage: fulcrum_bench_blocks
// [--shape=NxK[,NxK...]] [--cold_mb=420] [--pieces]
// --pieces: instead, what 17 to 31 rows take on the arms of 16 in two halves and as 16 and a rest.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/bench/bench_weight.h"
#include "kernels/bench/command_line.h"
#include "kernels/bench/report.h"
#include "kernels/cuda/bench/graph_timer.h"
#include "kernels/cuda/bench/trace_blocks.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/runtime/cuda_backend.h"
#include "kernels/ladder/ladder.h"

namespace fulcrum::bench {
namespace {

constexpr int kRows = 32;
constexpr int kLaunches = 60, kReplays = 9, kTracedLaunches = 15;

struct Options {
  std::vector<Shape> shapes = {{17408, 5120}, {5120, 17408}, {6144, 5120}};
  int cold_mb = 420;
  bool pieces = false;
};

bool Parse(int argc, char** argv, Options* options) {
  CommandLine line("fulcrum_bench_blocks");
  line.Flag("--pieces", &options->pieces);
  line.Number("--cold_mb", &options->cold_mb);
  line.Shapes("--shape", &options->shapes);
  return line.Parse(argc, argv);
}

// Copies of one weight, activations, outputs and a context: all that launches take.
class Bench {
 public:
  Bench(Backend& backend, const WeightSpec& spec, int cold_mb)
      : spec_(spec),
        pitch_(cuda::PaddedK(spec.k)),
        x_(static_cast<size_t>(kRows * pitch_) * 2),
        y_(OutputBytes()),
        workspace_(cuda::kWorkspaceBytes, cuda::kEmptySentinelByte),
        scratch_(cuda::kScratchBytes) {
    const BenchWeight source(spec, 1);
    const int64_t bytes = backend.ResidentBytes(spec);
    for (int64_t left = int64_t{cold_mb} * 1000000; left > 0; left -= bytes) {
      auto copy = backend.Upload(source);
      if (!copy.ok()) {
        std::fprintf(stderr, "%s\n", copy.status().ToString().c_str());
        return;
      }
      copies_.push_back(*std::move(copy));
    }
    const std::vector<uint16_t> x = BenchActivations(kRows, spec.k, pitch_);
    const auto context = cuda::ContextOf(0, backend.device());
    if (!context.ok() || x_.data == nullptr || y_.data == nullptr || workspace_.data == nullptr ||
        scratch_.data == nullptr ||
        !Ok(cudaMemcpy(x_.data, x.data(), x.size() * 2, cudaMemcpyHostToDevice), "copy")) {
      return;
    }
    context_ = *context;
    context_.workspace = static_cast<std::byte*>(workspace_.data);
    context_.workspace_bytes = cuda::kWorkspaceBytes;
    context_.scratch = static_cast<std::byte*>(scratch_.data);
    context_.scratch_bytes = cuda::kScratchBytes;
    ok_ = true;
  }

  bool ok() const { return ok_; }
  // Rows [first, first + m) with copy i of the weight, to be launched on the stream.
  ArmArgs Args(int i, int first, int m, cudaStream_t stream) {
    context_.stream = stream;
    return {.weight = copies_[static_cast<size_t>(i) % copies_.size()].get(),
            .activations = static_cast<uint16_t*>(x_.data) + first * pitch_,
            .activation_pitch = pitch_,
            .output = static_cast<uint16_t*>(y_.data) + first * spec_.n,
            .output_type = DType::kBf16,
            .output_pitch = spec_.n,
            .m = m,
            .context = &context_};
  }
  // Outputs of what `launch` puts into the default stream; empty when it failed.
  template <class Launch>
  std::vector<std::byte> Outputs(const Launch& launch) {
    std::vector<std::byte> out(OutputBytes());
    if (!Ok(cudaMemset(y_.data, 0, out.size()), "clear") || !launch() ||
        !Ok(cudaMemcpy(out.data(), y_.data, out.size(), cudaMemcpyDeviceToHost), "outputs")) {
      out.clear();
    }
    return out;
  }

 private:
  size_t OutputBytes() const { return static_cast<size_t>(kRows * spec_.n) * 2; }

  const WeightSpec spec_;
  const int64_t pitch_;
  const DeviceBytes x_, y_, workspace_, scratch_;
  std::vector<std::shared_ptr<ResidentWeight>> copies_;
  cuda::CudaContext context_;
  bool ok_ = false;
};

const Arm* ArmNamed(const Backend& backend, std::string_view name) {
  for (const Arm& arm : backend.ladder()) {
    if (arm.name == name && (arm.needs & ~backend.device().caps) == 0) return &arm;
  }
  return nullptr;
}

bool Launched(const Arm& arm, const ArmArgs& args) {
  const absl::Status status = arm.run(args);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok();
}

// What one launch looked like.
struct Filling {
  double us = 0;  // from the start of the first block to the end of the last
  int blocks = 0, sms = 0, most_resident = 0, least_blocks = 0, most_blocks = 0;  // of an SM
  double tail = 0;   // share of the time in which at least one SM had nothing left
  double idle = 0;   // share of all SMs' time that was lost so, and to SMs that never had a block
  double start = 0;  // share until every SM that had one had its first block
};
Filling Look(std::vector<BlockRecord> records, int sm_count) {
  std::erase_if(records, [](const BlockRecord& r) { return r.end_ns == 0; });
  Filling out;
  if (records.empty()) return out;
  std::map<unsigned, std::vector<BlockRecord>> by_sm;
  for (const BlockRecord& record : records) by_sm[record.sm].push_back(record);
  unsigned long long begin = ~0ull, end = 0, first_idle = ~0ull, last_start = 0;
  for (const BlockRecord& r : records) {
    begin = std::min(begin, r.begin_ns);
    end = std::max(end, r.end_ns);
  }
  const auto all = static_cast<double>(end - begin);
  out.least_blocks = static_cast<int>(records.size());
  double idle = static_cast<double>(sm_count - static_cast<int>(by_sm.size()));
  for (const auto& [sm, own] : by_sm) {
    std::vector<std::pair<unsigned long long, int>> events;  // ends before begins
    unsigned long long sm_begin = ~0ull, sm_end = 0;
    for (const BlockRecord& r : own) {
      events.emplace_back(r.begin_cycle, 1);
      events.emplace_back(r.end_cycle, -1);
      sm_begin = std::min(sm_begin, r.begin_ns);
      sm_end = std::max(sm_end, r.end_ns);
    }
    std::sort(events.begin(), events.end());
    int resident = 0;
    for (const auto& [cycle, change] : events) {
      resident += change;
      out.most_resident = std::max(out.most_resident, resident);
    }
    first_idle = std::min(first_idle, sm_end);
    last_start = std::max(last_start, sm_begin);
    idle += static_cast<double>(end - sm_end) / all;
    const auto count = static_cast<int>(own.size());
    out.least_blocks = std::min(out.least_blocks, count);
    out.most_blocks = std::max(out.most_blocks, count);
  }
  out.us = all * 1e-3;
  out.blocks = static_cast<int>(records.size());
  out.sms = static_cast<int>(by_sm.size());
  out.tail = static_cast<double>(end - first_idle) / all;
  out.idle = idle / sm_count;
  out.start = static_cast<double>(last_start - begin) / all;
  return out;
}

bool Trace(Backend& backend, const WeightSpec& spec, const Options& options) {
  Bench bench(backend, spec, options.cold_mb);
  if (!bench.ok()) return false;
  const DeviceBytes records(sizeof(BlockRecord) * kMostBlocks);
  auto* const to = static_cast<BlockRecord*>(records.data);
  if (to == nullptr || !Ok(TraceInto(to), "trace")) return false;
  const std::vector<BlockRecord> none(kMostBlocks);
  const int sm_count = backend.device().compute_units;
  std::printf("%ld x %ld\n%-20s %3s %8s %8s %9s %8s %7s %10s %7s %7s %7s %7s\n",
              static_cast<long>(spec.n), static_cast<long>(spec.k), "arm", "M", "arm us", "traced",
              "block us", "blocks", "SMs", "resident", "waves", "start", "tail", "idle");
  for (const TracedArm& traced : TracedArms()) {
    const Arm* const arm = ArmNamed(backend, traced.arm);
    if (arm == nullptr) continue;
    const auto run = [&](int i, cudaStream_t stream) {
      return Ok(traced.run(bench.Args(i, 0, traced.m, stream)), "traced launch");
    };
    const auto expected =
        bench.Outputs([&] { return Launched(*arm, bench.Args(0, 0, traced.m, nullptr)); });
    if (expected.empty() || bench.Outputs([&] { return run(0, nullptr); }) != expected) {
      std::fprintf(stderr, "%s: the traced kernel's outputs are not the arm's\n",
                   std::string(traced.arm).c_str());
      return false;
    }
    std::vector<Filling> launches;
    for (int i = 0; i < kTracedLaunches; ++i) {
      std::vector<BlockRecord> seen(kMostBlocks);
      const size_t bytes = sizeof(BlockRecord) * kMostBlocks;
      if (!Ok(cudaMemcpy(to, none.data(), bytes, cudaMemcpyHostToDevice), "clear") ||
          !run(i + 1, nullptr) ||
          !Ok(cudaMemcpy(seen.data(), to, bytes, cudaMemcpyDeviceToHost), "records")) {
        return false;
      }
      launches.push_back(Look(std::move(seen), sm_count));
    }
    std::sort(launches.begin(), launches.end(),
              [](const Filling& a, const Filling& b) { return a.us < b.us; });
    const Filling& median = launches[launches.size() / 2];
    const double arm_us = TimeGraph(kLaunches, kReplays, [&](int i, cudaStream_t stream) {
      return Launched(*arm, bench.Args(i, 0, traced.m, stream));
    });
    const double traced_us = TimeGraph(kLaunches, kReplays, run);
    std::printf(
        "%-20s %3d %8.2f %8.2f %9.2f %8d %3d/%-3d %3d (%d..%d) %6.2f %6.1f%% %6.1f%% %6.1f%%"
        "   tail %.1f%% .. %.1f%%\n",
        std::string(traced.arm).c_str(), traced.m, arm_us, traced_us, median.us, median.blocks,
        median.sms, sm_count, median.most_resident, median.least_blocks, median.most_blocks,
        static_cast<double>(median.blocks) / (median.most_resident * sm_count), 100 * median.start,
        100 * median.tail, 100 * median.idle,
        100 * std::ranges::min(launches, {}, &Filling::tail).tail,
        100 * std::ranges::max(launches, {}, &Filling::tail).tail);
    std::fflush(stdout);
  }
  return true;
}

bool ComparePieces(Backend& backend, const WeightSpec& spec, const Options& options) {
  constexpr int kRounds = 7;
  Bench bench(backend, spec, options.cold_mb);
  if (!bench.ok()) return false;
  std::printf("%ld x %ld\n%-20s %3s %10s %10s %22s\n", static_cast<long>(spec.n),
              static_cast<long>(spec.k), "arm", "M", "halves us", "16+rest us",
              "16+rest over halves");
  for (const std::string_view name : {"w8a16_gemm_m16", "w8a16_gemm_m16_n64"}) {
    const Arm* const arm = ArmNamed(backend, name);
    if (arm == nullptr) continue;
    for (int m = arm->rows_per_launch + 1; m < kRows; ++m) {
      const auto run = [&](const std::vector<int>& pieces, int i, cudaStream_t stream) {
        int first = 0;
        for (const int rows : pieces) {
          if (!Launched(*arm, bench.Args(i, first, rows, stream))) return false;
          first += rows;
        }
        return true;
      };
      const std::vector<int> halves = {(m + 1) / 2, m / 2};
      const std::vector<int> rest = Pieces(*arm, m);
      const auto expected = bench.Outputs([&] { return run(halves, 0, nullptr); });
      if (expected.empty() || bench.Outputs([&] { return run(rest, 0, nullptr); }) != expected) {
        std::fprintf(stderr, "%s, M = %d: the pieces' outputs differ\n", std::string(name).c_str(),
                     m);
        return false;
      }
      std::vector<double> us[2], ratio;
      for (int round = 0; round < kRounds; ++round) {
        for (const int turn : {0, 1}) {
          const int which = (turn + round) % 2;
          us[which].push_back(TimeGraph(kLaunches, kReplays, [&](int i, cudaStream_t stream) {
            return run(which == 0 ? halves : rest, i, stream);
          }));
        }
        ratio.push_back(us[1].back() / us[0].back());
      }
      std::printf("%-20s %3d %10.2f %10.2f       %.3f (%.3f .. %.3f)\n", std::string(name).c_str(),
                  m, Quantile(us[0], 0.5), Quantile(us[1], 0.5), Quantile(ratio, 0.5),
                  *std::ranges::min_element(ratio), *std::ranges::max_element(ratio));
      std::fflush(stdout);
    }
  }
  return true;
}

}  // namespace
}  // namespace fulcrum::bench

int main(int argc, char** argv) {
  using namespace fulcrum;  // NOLINT: a program of one file
  bench::Options options;
  if (!bench::Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: fulcrum_bench_blocks [--shape=NxK[,NxK...]] [--cold_mb=MB] [--pieces]\n");
    return 2;
  }
  auto backends = cuda::MakeCudaBackends(0);
  if (!backends.ok()) {
    std::fprintf(stderr, "%s\n", backends.status().ToString().c_str());
    return 1;
  }
  Backend& backend = *backends->front();
  std::printf("%s\n", backend.device().description.c_str());
  for (const auto& [n, k] : options.shapes) {
    const WeightSpec spec = {.name = "w", .n = n, .k = k};
    if (!(options.pieces ? bench::ComparePieces : bench::Trace)(backend, spec, options)) return 1;
  }
  return 0;
}
