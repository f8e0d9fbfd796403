// SPDX-License-Identifier: Apache-2.0
// Times every arm of a backend's ladder on model-sized shapes, with cold weights, against what the
// machine itself can read and multiply-add. Results are checked against the oracle before they are
// timed. Usage: fulcrum_bench_arms [--backend=cpu] [--threads=0] [--filter=TEXT] [--m=1,4,16,32]
// [--shape=NxK[,NxK...]] [--cold_mb=600] [--launches=15] [--json]
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/backend_factory.h"
#include "kernels/bench/bench_weight.h"
#include "kernels/bench/command_line.h"
#include "kernels/bench/machine.h"
#include "kernels/bench/report.h"
#include "kernels/bench/sgemv.h"
#include "kernels/numerics/oracle.h"

namespace fulcrum::bench {
namespace {

struct Options {
  std::string backend = "cpu";
  int threads = 0;
  std::string filter;
  std::vector<int> rows = {1, 4, 16, 32};
  std::vector<Shape> shapes;  // none: the built-in list
  int cold_mb = 600;
  int launches = 15;
  bool json = false;
};

bool Parse(int argc, char** argv, Options* options) {
  CommandLine line("fulcrum_bench_arms");
  line.Flag("--json", &options->json);
  line.Text("--backend", &options->backend);
  line.Text("--filter", &options->filter);
  line.Number("--threads", &options->threads, 0);
  line.Number("--cold_mb", &options->cold_mb);
  line.Number("--launches", &options->launches);
  line.Shapes("--shape", &options->shapes);
  line.Numbers("--m", &options->rows);
  return line.Parse(argc, argv);
}

std::vector<WeightSpec> Shapes(WeightFormat format, const Options& options) {
  const auto spec = [format](int64_t n, int64_t k, int block = 64) {
    return WeightSpec{.name = "bench", .format = format, .n = n, .k = k, .q2_block = block};
  };
  if (!options.shapes.empty()) {
    std::vector<WeightSpec> given;
    for (const auto& [n, k] : options.shapes) given.push_back(spec(n, k));
    return given;
  }
  switch (format) {
    case WeightFormat::kFp8Block128:
      return {spec(17408, 5120), spec(5120, 17408), spec(1024, 5120)};
    case WeightFormat::kQ2_0:
      return {spec(17408, 5120), spec(5120, 17408), spec(640, 2560), spec(17408, 5120, 128)};
    case WeightFormat::kBf16:
      break;
  }
  return {spec(32768, 5120)};
}

// A few outputs of the launch in `slot` against the oracle.
bool Correct(const Arm& arm, const WeightSource& source, std::span<const uint16_t> x, int m,
             const std::byte* out) {
  if (arm.numerics == NumericsClass::kW8A8) return true;  // its oracle is a budget, not bits
  const WeightSpec& spec = source.spec();
  for (int i = 0; i < 8; ++i) {
    const int64_t n = (spec.n - 1) * i / 7;
    const int row = (m - 1) * i / 7;
    absl::StatusOr<float> expected = numerics::ReferenceElement(
        arm.numerics, source, n,
        x.subspan(static_cast<size_t>(row * spec.k), static_cast<size_t>(spec.k)));
    if (!expected.ok() || std::memcmp(&*expected, out + (row * spec.n + n) * 4, 4) != 0) {
      std::fprintf(stderr, "%.*s: row %d column %lld is not the oracle's\n",
                   static_cast<int>(arm.name.size()), arm.name.data(), row,
                   static_cast<long long>(n));
      return false;
    }
  }
  return true;
}

// Times one arm at one M; false when it is wrong or cannot run.
bool Measure(Backend& backend, const Arm& arm, const BenchWeight& source,
             std::span<const std::shared_ptr<ResidentWeight>> copies, int m, const Options& options,
             const Yardsticks& best) {
  const WeightSpec& spec = source.spec();
  const std::vector<uint16_t> x = BenchActivations(m, spec.k, spec.k);
  const std::unique_ptr<LaunchSlot> slot = backend.NewSlot();
  const size_t out_bytes = static_cast<size_t>(m * spec.n) * 4;
  if (!slot->Reserve(x.size() * 2, std::span(&out_bytes, 1)).ok()) return false;
  std::memcpy(slot->activations(), x.data(), x.size() * 2);
  Cell cell = {.arm = std::string(arm.name),
               .n = spec.n,
               .k = spec.k,
               .m = m,
               .copies = static_cast<int>(copies.size()),
               .bytes = backend.Shape(arm, spec, m).bytes};
  const int warm_up = 2;
  for (int i = -warm_up; i < options.launches; ++i) {
    const LaunchTarget target = {
        .arm = &arm, .weight = copies[static_cast<size_t>(i + warm_up) % copies.size()].get()};
    absl::StatusOr<LaunchTimes> times =
        backend.Run(*slot, {.targets = std::span(&target, 1), .m = m, .output_type = DType::kF32});
    if (!times.ok()) {
      std::fprintf(stderr, "%s: %s\n", cell.arm.c_str(), times.status().ToString().c_str());
      return false;
    }
    if (i >= 0) cell.seconds.push_back(times->kernel);
  }
  if (!Correct(arm, source, x, m, slot->output(0))) return false;
  std::fputs((options.json ? Json(cell, best) : Row(cell, best)).c_str(), stdout);
  std::fflush(stdout);
  return true;
}

// q2_0 at M = 1 beside dequantised weights and a BLAS, in the same run.
void CompareWithSgemv(const BenchWeight& source, const Options& options, const Yardsticks& best) {
  const WeightSpec& spec = source.spec();
  const int64_t bytes = spec.n * spec.k * 4;
  const int copies =
      static_cast<int>(std::max<int64_t>(1, (int64_t{options.cold_mb} << 20) / bytes));
  Cell cell = {.arm = "dequantised f32 sgemv",
               .n = spec.n,
               .k = spec.k,
               .m = 1,
               .copies = copies,
               .seconds = TimeSgemv(source, best.threads, copies, options.launches),
               .bytes = bytes};
  if (cell.seconds.empty()) return;
  std::fputs((options.json ? Json(cell, best) : Row(cell, best)).c_str(), stdout);
}

bool BenchFormat(Backend& backend, WeightFormat format, const Options& options,
                 const Yardsticks& best) {
  bool ok = true;
  for (const WeightSpec& spec : Shapes(format, options)) {
    std::vector<const Arm*> arms;
    for (const Arm& arm : backend.ladder()) {
      if (arm.format == format && absl::StrContains(std::string(arm.name), options.filter) &&
          (arm.needs & ~backend.device().caps) == 0) {
        arms.push_back(&arm);
      }
    }
    if (arms.empty()) return ok;
    const BenchWeight source(spec, 1);
    const int64_t bytes = backend.ResidentBytes(spec);
    // Every copy has the same content, so every launch can be checked against one source.
    std::vector<std::shared_ptr<ResidentWeight>> copies;
    const int64_t wanted = std::clamp<int64_t>((int64_t{options.cold_mb} << 20) / bytes, 1, 64);
    while (static_cast<int64_t>(copies.size()) < wanted) {
      absl::StatusOr<std::shared_ptr<ResidentWeight>> copy = backend.Upload(source);
      if (!copy.ok()) break;
      copies.push_back(*std::move(copy));
    }
    if (copies.empty()) {
      std::fprintf(stderr, "%lld bytes do not fit\n", static_cast<long long>(bytes));
      return false;
    }
    for (const Arm* arm : arms) {
      for (const int m : options.rows) {
        if (m < arm->m_min || m > arm->m_max) continue;
        ok = Measure(backend, *arm, source, copies, m, options, best) && ok;
      }
    }
    if (format == WeightFormat::kQ2_0 && backend.name() == "cpu") {
      CompareWithSgemv(source, options, best);
    }
  }
  return ok;
}

int Main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // freed buffers stay mapped: no page faults while timing
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  Options options;
  if (!Parse(argc, argv, &options)) return 2;
  absl::StatusOr<std::vector<std::unique_ptr<Backend>>> backends =
      MakeBackends(options.backend, {.cpu_threads = options.threads});
  if (!backends.ok()) {
    std::fprintf(stderr, "%s\n", backends.status().ToString().c_str());
    return 1;
  }
  bool ok = true;
  for (const std::unique_ptr<Backend>& backend : *backends) {
    Yardsticks best = {.device = backend->device().description,
                       .threads = backend->device().compute_units};
    if (backend->name() == "cpu") {
      best.read_bytes = ReadBandwidth(best.threads, int64_t{options.cold_mb} << 20);
      best.fmas = FmaPeak(best.threads);
    }
    if (!options.json) std::fputs(Header(best).c_str(), stdout);
    for (const WeightFormat format : kAllWeightFormats) {
      ok = BenchFormat(*backend, format, options, best) && ok;
    }
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace fulcrum::bench

int main(int argc, char** argv) { return fulcrum::bench::Main(argc, argv); }
