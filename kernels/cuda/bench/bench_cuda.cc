// Times every arm of the CUDA ladder as nodes of a graph over cold weights, beside the fastest
// plain read of the same bytes in the same run. Usage: fulcrum_bench_cuda [--filter=TEXT]
// [--m=1,8,16,32]
// [--shape=NxK[,NxK...]] [--format=fp8|bf16|q2_0] [--cold_mb=420] [--launches=60]
// [--replays=9] [--peers] [--programmatic] [--siblings=N[,N...]] [--q2_table]
// Weights rotate over copies of cold_mb together (several times the L2); a cell is the median over
// replays of (replay time / launches). A few outputs of the first launch are checked against the
// oracle, bit for bit, before the cell is printed; of a class without pinned bits many are, as a
// mean. --peers: also what the vendor's library makes of the same weights, where it is found.
// --programmatic: launches follow each other so, where the arm can. --siblings: further weights of
// the same K in every launch, for arms that fuse. --q2_table: 2560 -> 12288 in q2_0 at M = 1 to 4,
// 300 launches, and the ratio of the exact layout's time to that of warp rows and imma.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/backend.h"
#include "kernels/bench/bench_weight.h"
#include "kernels/bench/shape_option.h"
#include "kernels/cuda/bench/graph_timer.h"
#include "kernels/cuda/bench/peers.h"
#include "kernels/cuda/bench/read_floor.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/runtime/cuda_backend.h"
#include "kernels/cuda/w8a8/cublaslt.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/budget.h"
#include "kernels/numerics/oracle.h"

namespace fulcrum::bench {
namespace {

struct Options {
  std::string filter;
  WeightFormat format = WeightFormat::kFp8Block128;
  std::vector<int> rows;                            // of none given, DefaultRows
  std::vector<std::pair<int64_t, int64_t>> shapes;  // of none given, DefaultShapes
  int cold_mb = 420, launches = 60, replays = 9;
  bool peers = false, programmatic = false, q2_table = false;
  std::vector<int64_t> siblings;
};

// Microseconds by arm and M.
using Times = std::map<std::pair<std::string_view, int>, double>;

std::vector<int> DefaultRows(WeightFormat format) {
  if (format == WeightFormat::kQ2_0) return {1, 2, 4, 8, 16, 32};
  return {1, 8, 16, 32};
}
std::vector<std::pair<int64_t, int64_t>> DefaultShapes(WeightFormat format) {
  if (format == WeightFormat::kQ2_0) return {{12288, 2560}, {17408, 5120}};
  return {{17408, 5120}, {5120, 17408}, {6144, 5120}, {5120, 6144}, {1024, 5120}};
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> part = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string value = part.size() > 1 ? part[1] : "";
    bool ok = true;
    if (part[0] == "--filter") {
      options->filter = value;
    } else if (part[0] == "--format") {
      const auto format = ParseWeightFormat(value);
      ok = format.has_value();
      if (ok) options->format = *format;
    } else if (part[0] == "--peers") {
      options->peers = true;
    } else if (part[0] == "--q2_table") {
      options->q2_table = true;
      options->format = WeightFormat::kQ2_0;
      options->shapes = {{12288, 2560}};
      options->rows = {1, 2, 3, 4};
      options->launches = 300;
    } else if (part[0] == "--programmatic") {
      options->programmatic = true;
    } else if (part[0] == "--siblings") {
      for (const auto text : absl::StrSplit(value, ',')) {
        ok = absl::SimpleAtoi(text, &options->siblings.emplace_back()) &&
             options->siblings.back() > 0 && ok;
      }
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
      ok = ParseShapes(value, &options->shapes);
    } else {
      ok = false;
    }
    if (!ok) {
      std::fprintf(stderr, "fulcrum_bench_cuda: cannot use \"%s\"; see the head of bench_cuda.cc\n",
                   argv[i]);
      return false;
    }
  }
  if (options->rows.empty()) options->rows = DefaultRows(options->format);
  if (options->shapes.empty()) options->shapes = DefaultShapes(options->format);
  return true;
}

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

// Sampled outputs against class exact, as class w8a8 is judged; `out` reads one.
numerics::Verdict Sampled(const WeightSource& source, std::span<const uint16_t> x, int64_t pitch,
                          int m, const std::function<float(size_t)>& out) {
  const WeightSpec& spec = source.spec();
  constexpr int kSamples = 200;
  std::vector<double> expected;
  std::vector<float> found;
  for (int i = 0; i < kSamples; ++i) {
    const int64_t n = (spec.n - 1) * i / (kSamples - 1);
    const int row = static_cast<int>(int64_t{i} * 7919 % m);
    const auto own = x.subspan(static_cast<size_t>(row * pitch), static_cast<size_t>(spec.k));
    expected.push_back(
        numerics::ReferenceElement(NumericsClass::kExact, source, n, own).value_or(NAN));
    found.push_back(out(static_cast<size_t>(row * spec.n + n)));
  }
  return numerics::CheckW8A8Budget(expected, found, 1, kSamples);
}

// F32 outputs at eight places against the oracle.
bool Correct(const Arm& arm, const WeightSource& source, std::span<const uint16_t> x, int64_t pitch,
             int m, std::span<const float> out) {
  if (arm.numerics == NumericsClass::kW8A8) {
    const numerics::Verdict verdict =
        Sampled(source, x, pitch, m, [out](size_t i) { return out[i]; });
    if (verdict.ok) return true;
    std::fprintf(stderr, "%s: %s\n", std::string(arm.name).c_str(), verdict.Describe().c_str());
    return false;
  }
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

bool BenchPeers(std::span<const cuda::CudaWeight* const> weights, const WeightSource& source,
                std::span<const uint16_t> host_x, const uint16_t* x, int64_t pitch, void* y,
                const Options& options) {
  std::string reason;
  const std::unique_ptr<Peers> peers = Peers::Make(weights, &reason);
  if (peers == nullptr) {
    std::fprintf(stderr, "no peers: %s\n", reason.c_str());
    return true;  // where it is found
  }
  const WeightSpec& spec = source.spec();
  for (const int m : options.rows) {
    for (const PeerRow& row : peers->Rows(x, m, y)) {
      std::vector<uint16_t> out(static_cast<size_t>(m * spec.n));
      if (!row.node(0, nullptr) ||
          !Ok(cudaMemcpy(out.data(), y, out.size() * 2, cudaMemcpyDeviceToHost), "peer")) {
        std::printf("%-22s M %4d  refused\n", row.name.c_str(), m);
        continue;
      }
      const numerics::Verdict verdict =
          Sampled(source, host_x, pitch, m, [&out](size_t i) { return Bf16ToF32(out[i]); });
      std::printf("%-22s M %4d  %8.2f us  relative error %.1e\n", row.name.c_str(), m,
                  TimeGraph(options.launches, options.replays, row.node), verdict.relative_rms);
      std::fflush(stdout);
    }
  }
  return true;
}

bool BenchShape(Backend& backend, const WeightSpec& spec, const Options& options, Times* times) {
  const int sm_count = backend.device().compute_units;
  const BenchWeight source(spec, 1);
  std::vector<BenchWeight> sibling_sources;
  int64_t bytes = backend.ResidentBytes(spec), most_n = spec.n;
  for (const int64_t n : options.siblings) {
    WeightSpec sibling = spec;
    sibling.n = n;
    bytes += backend.ResidentBytes(sibling);
    most_n = std::max(most_n, n);
    sibling_sources.emplace_back(sibling, 2);
  }
  std::vector<std::shared_ptr<ResidentWeight>> copies;
  std::vector<std::vector<std::shared_ptr<ResidentWeight>>> sibling_copies;
  const int64_t wanted =
      std::max<int64_t>(2, (int64_t{options.cold_mb} * 1000000 + bytes - 1) / bytes);
  while (static_cast<int64_t>(copies.size()) < wanted) {
    auto copy = backend.Upload(source);
    if (!copy.ok()) {
      std::fprintf(stderr, "%s\n", copy.status().ToString().c_str());
      return false;
    }
    copies.push_back(*std::move(copy));
    auto& others = sibling_copies.emplace_back();
    for (const BenchWeight& sibling : sibling_sources) {
      auto other = backend.Upload(sibling);
      if (!other.ok()) {
        std::fprintf(stderr, "%s\n", other.status().ToString().c_str());
        return false;
      }
      others.push_back(*std::move(other));
    }
  }
  const auto weight = [&](int i) {
    return static_cast<const cuda::CudaWeight*>(
        copies[static_cast<size_t>(i) % copies.size()].get());
  };

  const DeviceBytes sink(4);
  int64_t code_bytes = weight(0)->layout().code_bytes();
  double floor_us = 0;
  std::string_view floor_name;
  for (const ReadKernel& kernel : ReadKernels()) {
    if (kernel.needs_sm90 && (backend.device().caps & kCapSm90a) == 0) continue;
    const double us = TimeGraph(options.launches, options.replays, [&](int i, cudaStream_t stream) {
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

  // Read apart for the floor, so siblings are only counted from here on.
  for (const auto& sibling : sibling_copies.front()) {
    code_bytes += static_cast<const cuda::CudaWeight&>(*sibling).layout().code_bytes();
  }
  const int64_t pitch = cuda::PaddedK(spec.k);
  const int most = std::max(32, *std::max_element(options.rows.begin(), options.rows.end()));
  constexpr int kSpareRows = 3;  // the library rounds M up
  const std::vector<uint16_t> x = Activations(most + kSpareRows, spec.k, pitch);
  const DeviceBytes device_x(x.size() * 2);
  const DeviceBytes y(static_cast<size_t>((most + kSpareRows) * spec.n) * 4);
  const DeviceBytes sibling_y(static_cast<size_t>(most * most_n) * 4);
  const DeviceBytes workspace(cuda::kWorkspaceBytes, cuda::kEmptySentinelByte);
  const DeviceBytes scratch(cuda::kScratchBytes);
  if (workspace.data == nullptr || scratch.data == nullptr || y.data == nullptr ||
      sibling_y.data == nullptr || device_x.data == nullptr || sink.data == nullptr) {
    return false;
  }
  if (!Ok(cudaMemcpy(device_x.data, x.data(), x.size() * 2, cudaMemcpyHostToDevice), "copy")) {
    return false;
  }
  const absl::StatusOr<cuda::CudaContext> facts = cuda::ContextOf(0, backend.device());
  if (!facts.ok()) return false;
  // The backend's own is not for others' launches.
  std::unique_ptr<cuda::CublasLt> library;
  if ((backend.device().caps & kCapLibrary) != 0) {
    auto opened = cuda::CublasLt::Open(0);
    if (opened.ok()) library = *std::move(opened);
  }
  bool ok = true;
  for (const Arm& arm : backend.ladder()) {
    if (arm.format != spec.format || (arm.needs & ~backend.device().caps) != 0 ||
        arm.name.find(options.filter) == std::string_view::npos) {
      continue;
    }
    for (const int m : options.rows) {
      if (m < arm.m_min || m > arm.m_max || m > arm.rows_per_launch) continue;
      cuda::CudaContext context = *facts;
      context.workspace = static_cast<std::byte*>(workspace.data);
      context.workspace_bytes = cuda::kWorkspaceBytes;
      context.scratch = static_cast<std::byte*>(scratch.data);
      context.scratch_bytes = cuda::kScratchBytes;
      context.library = library.get();
      const auto run = [&](int i, cudaStream_t stream, DType type) {
        context.stream = stream;
        context.programmatic = options.programmatic && stream != nullptr && i > 0;
        std::vector<FusedWeight> siblings;
        if (arm.fuses) {
          for (const auto& other : sibling_copies[static_cast<size_t>(i) % copies.size()]) {
            siblings.push_back({other.get(), sibling_y.data, other->spec().n});
          }
        }
        const absl::Status status = arm.run({.weight = weight(i),
                                             .activations = device_x.data,
                                             .activation_pitch = pitch,
                                             .output = y.data,
                                             .output_type = type,
                                             .output_pitch = spec.n,
                                             .m = m,
                                             .output_room = m + kSpareRows,
                                             .context = &context,
                                             .fused = siblings});
        if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return status.ok();
      };
      std::vector<float> out(static_cast<size_t>(m * spec.n));
      // A library loads what it takes for this M, which it cannot while a graph is captured.
      if (!run(0, nullptr, DType::kBf16) || !run(0, nullptr, DType::kF32) ||
          !Ok(cudaMemcpy(out.data(), y.data, out.size() * 4, cudaMemcpyDeviceToHost), "launch")) {
        return false;
      }
      const bool correct = Correct(arm, source, x, pitch, m, out);
      const double us =
          TimeGraph(options.launches, options.replays,
                    [&](int i, cudaStream_t stream) { return run(i, stream, DType::kBf16); });
      (*times)[{arm.name, m}] = us;
      std::printf("%-22s M %4d  %8.2f us  %6.0f GB/s  %5.1f %% of the read%s\n",
                  std::string(arm.name).c_str(), m, us,
                  us > 0 ? static_cast<double>(code_bytes) * 1e-3 / us : 0,
                  us > 0 ? 100 * floor_us / us : 0, correct ? "" : "  WRONG");
      std::fflush(stdout);
      ok = ok && correct && us > 0;
    }
  }
  if (options.peers && weight(0)->rows() != nullptr) {
    std::vector<const cuda::CudaWeight*> weights;
    for (size_t i = 0; i < copies.size(); ++i) weights.push_back(weight(static_cast<int>(i)));
    ok = BenchPeers(weights, source, x, static_cast<const uint16_t*>(device_x.data), pitch, y.data,
                    options) &&
         ok;
  }
  return ok;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) return 2;
  auto backends = cuda::MakeCudaBackends(0, /*w8a8=*/true, /*without_caps=*/0, /*library=*/true);
  if (!backends.ok()) {
    std::fprintf(stderr, "%s\n", backends.status().ToString().c_str());
    return 1;
  }
  Backend& backend = *backends->front();
  std::printf("%s, %d multiprocessors\n", backend.device().description.c_str(),
              backend.device().compute_units);
  bool ok = true;
  Times times;
  for (const auto& [n, k] : options.shapes) {
    const WeightSpec spec = {.name = "bench", .format = options.format, .n = n, .k = k};
    ok = BenchShape(backend, spec, options, &times) && ok;
  }
  for (const int m : options.rows) {
    const double exact_layout = times[{"q2_0_mmvq", m}];
    for (const std::string_view arm : {"q2_0_warp_rows", "q2_0_imma"}) {
      if (!options.q2_table || times[{arm, m}] <= 0) continue;
      std::printf("M %d: q2_0_mmvq %.2f us, %s %.2f us, ratio %.2f\n", m, exact_layout,
                  std::string(arm).c_str(), times[{arm, m}], exact_layout / times[{arm, m}]);
    }
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace fulcrum::bench

int main(int argc, char** argv) { return fulcrum::bench::Main(argc, argv); }
