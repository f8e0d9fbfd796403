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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/bench/bench_weight.h"
#include "kernels/bench/command_line.h"
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
  std::vector<int> rows;      // of none given, DefaultRows
  std::vector<Shape> shapes;  // of none given, DefaultShapes
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
std::vector<Shape> DefaultShapes(WeightFormat format) {
  if (format == WeightFormat::kQ2_0) return {{12288, 2560}, {17408, 5120}};
  return {{17408, 5120}, {5120, 17408}, {6144, 5120}, {5120, 6144}, {1024, 5120}};
}

bool Parse(int argc, char** argv, Options* options) {
  CommandLine line("fulcrum_bench_cuda");
  line.Text("--filter", &options->filter);
  line.Value("--format", [options](const std::string& text) {
    const auto format = ParseWeightFormat(text);
    if (format.has_value()) options->format = *format;
    return format.has_value();
  });
  line.Flag("--peers", &options->peers);
  line.Value("--q2_table", [options](const std::string&) {
    options->format = WeightFormat::kQ2_0;
    options->shapes = {{12288, 2560}};
    options->rows = {1, 2, 3, 4};
    options->launches = 300;
    return options->q2_table = true;
  });
  line.Flag("--programmatic", &options->programmatic);
  line.Numbers("--siblings", &options->siblings);
  line.Number("--cold_mb", &options->cold_mb);
  line.Number("--launches", &options->launches);
  line.Number("--replays", &options->replays);
  line.Numbers("--m", &options->rows);
  line.Shapes("--shape", &options->shapes);
  if (!line.Parse(argc, argv)) return false;
  if (options->rows.empty()) options->rows = DefaultRows(options->format);
  if (options->shapes.empty()) options->shapes = DefaultShapes(options->format);
  return true;
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

// One shape: copies of its weight and of those fused with it, and the buffers of launches.
class ShapeBench {
 public:
  ShapeBench(Backend& backend, const WeightSpec& spec, const Options& options)
      : backend_(backend),
        spec_(spec),
        options_(options),
        source_(spec, 1),
        most_(std::max(32, *std::max_element(options.rows.begin(), options.rows.end()))),
        pitch_(cuda::PaddedK(spec.k)),
        x_(BenchActivations(most_ + kSpareRows, spec.k, pitch_)),
        device_x_(x_.size() * 2),
        y_(static_cast<size_t>((most_ + kSpareRows) * spec.n) * 4),
        workspace_(cuda::kWorkspaceBytes, cuda::kEmptySentinelByte),
        scratch_(cuda::kScratchBytes) {}

  // Measures and prints everything; false when something failed or was wrong.
  bool Run(Times* times) {
    if (!Upload()) return false;
    MeasureFloor();
    if (!Prepare()) return false;
    bool ok = true;
    for (const Arm& arm : backend_.ladder()) {
      if (arm.format != spec_.format || (arm.needs & ~backend_.device().caps) != 0 ||
          arm.name.find(options_.filter) == std::string_view::npos) {
        continue;
      }
      for (const int m : options_.rows) {
        if (m < arm.m_min || m > arm.m_max || m > arm.rows_per_launch) continue;
        const std::optional<bool> cell = BenchCell(arm, m, times);
        if (!cell.has_value()) return false;
        ok = ok && *cell;
      }
    }
    if (options_.peers && Weight(0)->rows() != nullptr) ok = BenchPeers() && ok;
    return ok;
  }

 private:
  using Weights = std::vector<std::shared_ptr<ResidentWeight>>;
  static constexpr int kSpareRows = 3;  // the library rounds M up

  const cuda::CudaWeight* Weight(int i) const {
    return static_cast<const cuda::CudaWeight*>(
        copies_[static_cast<size_t>(i) % copies_.size()].get());
  }
  std::shared_ptr<ResidentWeight> UploadOne(const WeightSource& source) const {
    auto weight = backend_.Upload(source);
    if (weight.ok()) return *std::move(weight);
    std::fprintf(stderr, "%s\n", weight.status().ToString().c_str());
    return nullptr;
  }

  bool Upload() {
    std::vector<BenchWeight> sibling_sources;
    int64_t bytes = backend_.ResidentBytes(spec_), most_n = spec_.n;
    for (const int64_t n : options_.siblings) {
      WeightSpec sibling = spec_;
      sibling.n = n;
      bytes += backend_.ResidentBytes(sibling);
      most_n = std::max(most_n, n);
      sibling_sources.emplace_back(sibling, 2);
    }
    sibling_y_.emplace(static_cast<size_t>(most_ * most_n) * 4);
    const int64_t wanted =
        std::max<int64_t>(2, (int64_t{options_.cold_mb} * 1000000 + bytes - 1) / bytes);
    while (static_cast<int64_t>(copies_.size()) < wanted) {
      copies_.push_back(UploadOne(source_));
      if (copies_.back() == nullptr) return false;
      Weights& siblings = sibling_copies_.emplace_back();
      for (const BenchWeight& sibling : sibling_sources) {
        siblings.push_back(UploadOne(sibling));
        if (siblings.back() == nullptr) return false;
      }
    }
    return true;
  }

  // The fastest plain read of one weight's codes. Siblings are not read, so they count from here
  // on.
  void MeasureFloor() {
    const DeviceBytes sink(4);
    code_bytes_ = Weight(0)->layout().code_bytes();
    std::string_view floor_name;
    for (const ReadKernel& kernel : ReadKernels()) {
      if (kernel.needs_sm90 && (backend_.device().caps & kCapSm90a) == 0) continue;
      const double us =
          TimeGraph(options_.launches, options_.replays, [&](int i, cudaStream_t stream) {
            return Ok(
                kernel.launch(Weight(i)->codes(), code_bytes_, backend_.device().compute_units,
                              static_cast<uint32_t*>(sink.data), stream),
                "read");
          });
      if (us > 0 && (floor_us_ == 0 || us < floor_us_)) {
        floor_us_ = us;
        floor_name = kernel.name;
      }
    }
    std::printf("%lld x %lld %s: one read of %.2f MB takes %.2f us (%s)\n",
                static_cast<long long>(spec_.n), static_cast<long long>(spec_.k),
                std::string(Name(spec_.format)).c_str(), static_cast<double>(code_bytes_) * 1e-6,
                floor_us_, std::string(floor_name).c_str());
    for (const auto& sibling : sibling_copies_.front()) {
      code_bytes_ += static_cast<const cuda::CudaWeight&>(*sibling).layout().code_bytes();
    }
  }

  bool Prepare() {
    if (workspace_.data == nullptr || scratch_.data == nullptr || y_.data == nullptr ||
        sibling_y_->data == nullptr || device_x_.data == nullptr ||
        !Ok(cudaMemcpy(device_x_.data, x_.data(), x_.size() * 2, cudaMemcpyHostToDevice), "copy")) {
      return false;
    }
    const absl::StatusOr<cuda::CudaContext> context = cuda::ContextOf(0, backend_.device());
    if (!context.ok()) return false;
    context_ = *context;
    context_.workspace = static_cast<std::byte*>(workspace_.data);
    context_.workspace_bytes = cuda::kWorkspaceBytes;
    context_.scratch = static_cast<std::byte*>(scratch_.data);
    context_.scratch_bytes = cuda::kScratchBytes;
    // The backend's own library is used by its launches alone.
    if ((backend_.device().caps & kCapLibrary) != 0) {
      auto opened = cuda::CublasLt::Open(0);
      if (opened.ok()) library_ = *std::move(opened);
    }
    context_.library = library_.get();
    return true;
  }

  // One launch, with copy i of the weights.
  bool Launch(const Arm& arm, int m, int i, cudaStream_t stream, DType type) {
    context_.stream = stream;
    context_.programmatic = options_.programmatic && stream != nullptr && i > 0;
    std::vector<FusedWeight> siblings;
    if (arm.fuses) {
      for (const auto& sibling : sibling_copies_[static_cast<size_t>(i) % copies_.size()]) {
        siblings.push_back({sibling.get(), sibling_y_->data, sibling->spec().n});
      }
    }
    const absl::Status status = arm.run({.weight = Weight(i),
                                         .activations = device_x_.data,
                                         .activation_pitch = pitch_,
                                         .output = y_.data,
                                         .output_type = type,
                                         .output_pitch = spec_.n,
                                         .m = m,
                                         .output_room = m + kSpareRows,
                                         .context = &context_,
                                         .fused = siblings});
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return status.ok();
  }

  // Whether the cell is right; nullopt when a launch failed.
  std::optional<bool> BenchCell(const Arm& arm, int m, Times* times) {
    std::vector<float> out(static_cast<size_t>(m * spec_.n));
    // A library loads its kernel for this M here, which it cannot while a graph is captured.
    if (!Launch(arm, m, 0, nullptr, DType::kBf16) || !Launch(arm, m, 0, nullptr, DType::kF32) ||
        !Ok(cudaMemcpy(out.data(), y_.data, out.size() * 4, cudaMemcpyDeviceToHost), "launch")) {
      return std::nullopt;
    }
    const bool correct = Correct(arm, source_, x_, pitch_, m, out);
    const double us = TimeGraph(
        options_.launches, options_.replays,
        [&](int i, cudaStream_t stream) { return Launch(arm, m, i, stream, DType::kBf16); });
    (*times)[{arm.name, m}] = us;
    std::printf("%-22s M %4d  %8.2f us  %6.0f GB/s  %5.1f %% of the read%s\n",
                std::string(arm.name).c_str(), m, us,
                us > 0 ? static_cast<double>(code_bytes_) * 1e-3 / us : 0,
                us > 0 ? 100 * floor_us_ / us : 0, correct ? "" : "  WRONG");
    std::fflush(stdout);
    return correct && us > 0;
  }

  // The vendor's library on the same weights; nothing where there is none.
  bool BenchPeers() {
    std::vector<const cuda::CudaWeight*> weights;
    for (size_t i = 0; i < copies_.size(); ++i) weights.push_back(Weight(static_cast<int>(i)));
    std::string reason;
    const std::unique_ptr<Peers> peers = Peers::Make(weights, &reason);
    if (peers == nullptr) {
      std::fprintf(stderr, "no peers: %s\n", reason.c_str());
      return true;
    }
    for (const int m : options_.rows) {
      for (const PeerRow& row :
           peers->Rows(static_cast<const uint16_t*>(device_x_.data), m, y_.data)) {
        std::vector<uint16_t> out(static_cast<size_t>(m * spec_.n));
        if (!row.node(0, nullptr) ||
            !Ok(cudaMemcpy(out.data(), y_.data, out.size() * 2, cudaMemcpyDeviceToHost), "peer")) {
          std::printf("%-22s M %4d  refused\n", row.name.c_str(), m);
          continue;
        }
        const numerics::Verdict verdict =
            Sampled(source_, x_, pitch_, m, [&out](size_t i) { return Bf16ToF32(out[i]); });
        std::printf("%-22s M %4d  %8.2f us  relative error %.1e\n", row.name.c_str(), m,
                    TimeGraph(options_.launches, options_.replays, row.node), verdict.relative_rms);
        std::fflush(stdout);
      }
    }
    return true;
  }

  Backend& backend_;
  const WeightSpec spec_;
  const Options& options_;
  const BenchWeight source_;
  const int most_;  // rows
  const int64_t pitch_;
  const std::vector<uint16_t> x_;
  const DeviceBytes device_x_, y_, workspace_, scratch_;
  std::optional<DeviceBytes> sibling_y_;
  Weights copies_;
  std::vector<Weights> sibling_copies_;  // of each copy
  int64_t code_bytes_ = 0;
  double floor_us_ = 0;
  cuda::CudaContext context_;
  std::unique_ptr<cuda::CublasLt> library_;
};

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
    ok = ShapeBench(backend, spec, options).Run(&times) && ok;
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
