// Times every arm of the CUDA ladder as nodes of a graph over cold weights, beside the fastest
// plain read of the same bytes in the same run. Usage: fulcrum_bench_cuda [--filter=TEXT]
// [--m=1,8,16,32]
// [--shape=NxK[,NxK...]] [--format=fp8|bf16] [--cold_mb=420] [--launches=60] [--replays=9]
// Weights rotate over copies of cold_mb together (several times the L2); a cell is the median over
// replays of (replay time / launches). A few outputs of the first launch are checked against the
// oracle, bit for bit, before the cell is printed.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/backend.h"
#include "kernels/bench/bench_weight.h"
#include "kernels/bench/report.h"
#include "kernels/cuda/bench/read_floor.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/oracle.h"

namespace fulcrum::bench {
namespace {

struct Options {
  std::string filter;
  WeightFormat format = WeightFormat::kFp8Block128;
  std::vector<int> rows = {1, 8, 16, 32};
  std::vector<std::pair<int64_t, int64_t>> shapes = {
      {17408, 5120}, {5120, 17408}, {6144, 5120}, {5120, 6144}, {1024, 5120}};
  int cold_mb = 420, launches = 60, replays = 9;
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> part = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string value = part.size() > 1 ? part[1] : "";
    bool ok = true;
    if (part[0] == "--filter") {
      options->filter = value;
    } else if (part[0] == "--format") {
      const auto format = ParseWeightFormat(value);
      ok = format.has_value() && *format != WeightFormat::kQ2_0;
      if (ok) options->format = *format;
    } else if (part[0] == "--cold_mb") {
      ok = absl::SimpleAtoi(value, &options->cold_mb) && options->cold_mb > 0;
    } else if (part[0] == "--launches") {
      ok = absl::SimpleAtoi(value, &options->launches) && options->launches > 0;
    } else if (part[0] == "--replays") {
      ok = absl::SimpleAtoi(value, &options->replays) && options->replays > 0;
    } else if (part[0] == "--m") {
      options->rows.clear();
      for (const auto text : absl::StrSplit(value, ',')) {
        ok =
            absl::SimpleAtoi(text, &options->rows.emplace_back()) && options->rows.back() > 0 && ok;
      }
    } else if (part[0] == "--shape") {
      options->shapes.clear();
      for (const auto text : absl::StrSplit(value, ',')) {
        const std::vector<std::string> sizes = absl::StrSplit(text, 'x');
        auto& shape = options->shapes.emplace_back();
        ok = sizes.size() == 2 && absl::SimpleAtoi(sizes[0], &shape.first) &&
             absl::SimpleAtoi(sizes[1], &shape.second) && shape.first > 0 && shape.second > 0 && ok;
      }
    } else {
      ok = false;
    }
    if (!ok) {
      std::fprintf(stderr, "fulcrum_bench_cuda: cannot use \"%s\"; see the head of bench_cuda.cc\n",
                   argv[i]);
      return false;
    }
  }
  return true;
}

bool Ok(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  return false;
}

using Node = std::function<bool(int launch, cudaStream_t stream)>;

// Microseconds a node, median of the replays; 0 when something failed.
double TimeGraph(const Options& options, const Node& node) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  bool ok = Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate") &&
            Ok(cudaEventCreate(&begin), "cudaEventCreate") &&
            Ok(cudaEventCreate(&end), "cudaEventCreate") &&
            Ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; ok && i < options.launches; ++i) ok = node(i, stream);
  ok = ok && Ok(cudaStreamEndCapture(stream, &graph), "capture") &&
       Ok(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  std::vector<double> us;
  for (int i = -3; ok && i < options.replays; ++i) {
    float ms = 0;
    ok = Ok(cudaEventRecord(begin, stream), "record") &&
         Ok(cudaGraphLaunch(exec, stream), "replay") &&
         Ok(cudaEventRecord(end, stream), "record") && Ok(cudaEventSynchronize(end), "replay") &&
         Ok(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 0) us.push_back(ms * 1e3 / options.launches);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return ok ? Quantile(us, 0.5) : 0;
}

// Device memory, filled; null when there was none.
struct DeviceBytes {
  explicit DeviceBytes(size_t bytes, int fill = 0) {
    if (Ok(cudaMalloc(&data, bytes), "cudaMalloc")) Ok(cudaMemset(data, fill, bytes), "cudaMemset");
  }
  ~DeviceBytes() { cudaFree(data); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data = nullptr;
};

std::vector<uint16_t> Activations(int m, int64_t k, int64_t pitch) {
  std::vector<uint16_t> x(static_cast<size_t>(m * pitch));
  uint32_t state = 1;
  for (int row = 0; row < m; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      state = state * 1664525u + 1013904223u;
      x[static_cast<size_t>(row * pitch + i)] =
          F32ToBf16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
    }
  }
  return x;
}

// F32 outputs at eight places against the oracle.
bool Correct(const Arm& arm, const WeightSource& source, std::span<const uint16_t> x, int64_t pitch,
             int m, std::span<const float> out) {
  if (arm.numerics == NumericsClass::kW8A8) return true;  // its oracle is a budget, not bits
  const WeightSpec& spec = source.spec();
  for (int i = 0; i < 8; ++i) {
    const int64_t n = (spec.n - 1) * i / 7;
    const int row = (m - 1) * i / 7;
    const absl::StatusOr<float> expected = numerics::ReferenceElement(
        arm.numerics, source, n,
        x.subspan(static_cast<size_t>(row * pitch), static_cast<size_t>(spec.k)));
    const float found = out[static_cast<size_t>(row * spec.n + n)];
    if (!expected.ok() || std::memcmp(&*expected, &found, 4) != 0) {
      std::fprintf(stderr, "%s: row %d column %lld is %a, the oracle says %a\n",
                   std::string(arm.name).c_str(), row, static_cast<long long>(n), found,
                   expected.value_or(0));
      return false;
    }
  }
  return true;
}

bool BenchShape(Backend& backend, const WeightSpec& spec, const Options& options) {
  const int sm_count = backend.device().compute_units;
  const BenchWeight source(spec, 1);
  const int64_t bytes = backend.ResidentBytes(spec);
  std::vector<std::shared_ptr<ResidentWeight>> copies;
  const int64_t wanted =
      std::max<int64_t>(2, (int64_t{options.cold_mb} * 1000000 + bytes - 1) / bytes);
  while (static_cast<int64_t>(copies.size()) < wanted) {
    auto copy = backend.Upload(source);
    if (!copy.ok()) {
      std::fprintf(stderr, "%s\n", copy.status().ToString().c_str());
      return false;
    }
    copies.push_back(*std::move(copy));
  }
  const auto weight = [&](int i) {
    return static_cast<const cuda::CudaWeight*>(
        copies[static_cast<size_t>(i) % copies.size()].get());
  };

  const DeviceBytes sink(4);
  const int64_t code_bytes = weight(0)->layout().code_bytes();
  double floor_us = 0;
  std::string_view floor_name;
  for (const ReadKernel& kernel : ReadKernels()) {
    if (kernel.needs_sm90 && (backend.device().caps & kCapSm90a) == 0) continue;
    const double us = TimeGraph(options, [&](int i, cudaStream_t stream) {
      return Ok(kernel.launch(weight(i)->codes(), code_bytes, sm_count,
                              static_cast<uint32_t*>(sink.data), stream),
                "read");
    });
    if (us > 0 && (floor_us == 0 || us < floor_us)) {
      floor_us = us;
      floor_name = kernel.name;
    }
  }
  std::printf("%lld x %lld %s: one read of %.2f MB takes %.2f us (%s)\n",
              static_cast<long long>(spec.n), static_cast<long long>(spec.k),
              std::string(Name(spec.format)).c_str(), static_cast<double>(code_bytes) * 1e-6,
              floor_us, std::string(floor_name).c_str());

  const int64_t pitch = cuda::PaddedK(spec.k);
  const int most = std::max(32, *std::max_element(options.rows.begin(), options.rows.end()));
  const std::vector<uint16_t> x = Activations(most, spec.k, pitch);
  const DeviceBytes device_x(x.size() * 2);
  const DeviceBytes y(static_cast<size_t>(most * spec.n) * 4);
  const DeviceBytes workspace(cuda::kWorkspaceBytes, cuda::kWorkspaceClean);
  const DeviceBytes scratch(cuda::kScratchBytes);
  if (workspace.data == nullptr || scratch.data == nullptr || y.data == nullptr ||
      device_x.data == nullptr || sink.data == nullptr) {
    return false;
  }
  if (!Ok(cudaMemcpy(device_x.data, x.data(), x.size() * 2, cudaMemcpyHostToDevice), "copy")) {
    return false;
  }
  int max_shared_bytes = 0;
  if (!Ok(cudaDeviceGetAttribute(&max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
          "cudaDeviceGetAttribute")) {
    return false;
  }
  bool ok = true;
  for (const Arm& arm : backend.ladder()) {
    if (arm.format != spec.format || (arm.needs & ~backend.device().caps) != 0 ||
        arm.name.find(options.filter) == std::string_view::npos) {
      continue;
    }
    for (const int m : options.rows) {
      if (m < arm.m_min || m > arm.m_max || m > arm.rows_per_launch) continue;
      cuda::CudaContext context = {.sm_count = sm_count,
                                   .has_wgmma = (backend.device().caps & kCapSm90a) != 0,
                                   .max_shared_bytes = max_shared_bytes,
                                   .workspace = static_cast<std::byte*>(workspace.data),
                                   .workspace_bytes = cuda::kWorkspaceBytes,
                                   .scratch = static_cast<std::byte*>(scratch.data),
                                   .scratch_bytes = cuda::kScratchBytes};
      const auto run = [&](int i, cudaStream_t stream, DType type) {
        context.stream = stream;
        const absl::Status status = arm.run({.weight = weight(i),
                                             .activations = device_x.data,
                                             .activation_pitch = pitch,
                                             .output = y.data,
                                             .output_type = type,
                                             .output_pitch = spec.n,
                                             .m = m,
                                             .context = &context});
        if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return status.ok();
      };
      std::vector<float> out(static_cast<size_t>(m * spec.n));
      if (!run(0, nullptr, DType::kF32) ||
          !Ok(cudaMemcpy(out.data(), y.data, out.size() * 4, cudaMemcpyDeviceToHost), "launch")) {
        return false;
      }
      const bool correct = Correct(arm, source, x, pitch, m, out);
      const double us = TimeGraph(
          options, [&](int i, cudaStream_t stream) { return run(i, stream, DType::kBf16); });
      std::printf("%-22s M %2d  %8.2f us  %6.0f GB/s  %5.1f %% of the read%s\n",
                  std::string(arm.name).c_str(), m, us,
                  us > 0 ? static_cast<double>(code_bytes) * 1e-3 / us : 0,
                  us > 0 ? 100 * floor_us / us : 0, correct ? "" : "  WRONG");
      std::fflush(stdout);
      ok = ok && correct && us > 0;
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
  Backend& backend = *backends->front();
  std::printf("%s, %d multiprocessors\n", backend.device().description.c_str(),
              backend.device().compute_units);
  bool ok = true;
  for (const auto& [n, k] : options.shapes) {
    ok =
        BenchShape(backend, {.name = "bench", .format = options.format, .n = n, .k = k}, options) &&
        ok;
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace fulcrum::bench

int main(int argc, char** argv) { return fulcrum::bench::Main(argc, argv); }
