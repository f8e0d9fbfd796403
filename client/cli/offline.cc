// Opening, computing and judging for `fulcrum verify`.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/offline.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/backend_factory.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/q2_0.h"
#include "kernels/ladder/ladder.h"
#include "kernels/numerics/deviation.h"
#include "kernels/numerics/oracle.h"
#include "kernels/weights/checkpoint.h"
#include "kernels/weights/tensor_catalog.h"
#include "kernels/weights/tensor_names.h"

namespace fulcrum::cli {
namespace {

constexpr int64_t kOracleRows = 256;  // weight rows a reference pass holds at a time

// |W|_F of the dequantised weight.
absl::StatusOr<double> Q2Frobenius(const WeightSource& source) {
  const WeightSpec& spec = source.spec();
  std::vector<std::byte> bytes(static_cast<size_t>(spec.row_bytes()));
  std::vector<float> row(static_cast<size_t>(spec.k));
  double sum = 0;
  for (int64_t n = 0; n < spec.n; ++n) {
    if (absl::Status status = source.ReadRows(n, 1, bytes); !status.ok()) return status;
    DecodeQ2Row(bytes, spec.q2_block, row);
    for (const float w : row) sum += static_cast<double>(w) * w;
  }
  return std::sqrt(sum);
}

std::vector<double> RowNorms(std::span<const uint16_t> x, int m) {
  const size_t k = x.size() / static_cast<size_t>(m);
  std::vector<double> norms(static_cast<size_t>(m));
  for (size_t row = 0; row < norms.size(); ++row) {
    double sum = 0;
    for (const uint16_t bits : x.subspan(row * k, k)) {
      const double value = Bf16ToF32(bits);
      sum += value * value;
    }
    norms[row] = std::sqrt(sum);
  }
  return norms;
}

}  // namespace

absl::StatusOr<OfflineWeight> OpenWeight(const std::string& path, const std::string& tensor) {
  const absl::StatusOr<TensorCatalog> catalog = ReadCatalog(path);
  if (!catalog.ok()) return catalog.status();
  std::string name = tensor;
  if (catalog->Find(name) == nullptr && catalog->Find(name + ".weight") != nullptr) {
    name += ".weight";
  }
  auto source = OpenTensor(*catalog, name);
  if (!source.ok()) return source.status();
  OfflineWeight weight{.source = *std::move(source)};
  weight.family = RoleOf(name).family;
  return weight;
}

absl::StatusOr<Product> Compute(const OfflineWeight& weight, std::span<const uint16_t> x, int m,
                                const ProductRequest& request) {
  auto backends = MakeBackends(request.backend, {.cpu_threads = request.threads});
  if (!backends.ok()) return backends.status();
  Backend& backend = *backends->front();
  const WeightSpec& spec = weight.source->spec();
  const LadderQuery query = {.format = spec.format,
                             .family = weight.family,
                             .step = request.step,
                             .policy = request.policy,
                             .device_caps = backend.device().caps};
  const ClassSet allowed = AllowedClasses(backend.ladder(), query, request.levers);
  const Arm* const arm = PickArm(backend.ladder(), query, allowed, request.levers, m);
  if (arm == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("no arm of %s serves %s in %s with %d rows; decode takes 1..%d, more rows "
                        "are --step prefill",
                        backend.name(), Name(spec.format), Name(request.step), m, kMaxDecodeRows));
  }
  return RunArm(backend, *arm, *weight.source, x, m, request.output_type);
}

absl::StatusOr<Product> RunArm(Backend& backend, const Arm& arm, const WeightSource& source,
                               std::span<const uint16_t> x, int m, DType output_type) {
  const auto resident = backend.Upload(source);
  if (!resident.ok()) return resident.status();
  const std::unique_ptr<LaunchSlot> slot = backend.NewSlot();
  const size_t count = static_cast<size_t>(m) * static_cast<size_t>(source.spec().n);
  const size_t output_bytes[] = {count * SizeOf(output_type)};
  if (absl::Status status = slot->Reserve(x.size_bytes(), output_bytes); !status.ok()) {
    return status;
  }
  std::copy(x.begin(), x.end(), slot->activations());
  const LaunchTarget target = {.arm = &arm, .weight = resident->get()};
  const auto times =
      backend.Run(*slot, {.targets = {&target, 1}, .m = m, .output_type = output_type});
  if (!times.ok()) return times.status();
  return Product{.arm = std::string(arm.name),
                 .device = backend.device().id,
                 .numerics = arm.numerics,
                 .values = Widen({slot->output(0), output_bytes[0]}, output_type)};
}

std::vector<float> Widen(std::span<const std::byte> bytes, DType type) {
  std::vector<float> values(bytes.size() / SizeOf(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::kF32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      values[i] = Bf16ToF32(bits);
    }
  }
  return values;
}

absl::StatusOr<numerics::Verdict> Grade(const WeightSource& source, std::span<const uint16_t> x,
                                        int m, std::span<const double> expected,
                                        const Product& product, DType output_type) {
  const WeightSpec& spec = source.spec();
  if (spec.format == WeightFormat::kQ2_0) {
    const absl::StatusOr<double> frobenius = Q2Frobenius(source);
    if (!frobenius.ok()) return frobenius.status();
    return numerics::CheckQ2Budget(expected, product.values, m, spec.n, spec.k, RowNorms(x, m),
                                   *frobenius);
  }
  if (product.numerics == NumericsClass::kW8A8) {
    return numerics::CheckW8A8Budget(expected, product.values, m, spec.n);
  }
  return numerics::CheckBudget(expected, product.values, m, spec.n, spec.k, output_type);
}

int64_t MaxUlpOfLargeValues(std::span<const double> expected, int m, const Product& product,
                            DType output_type) {
  return numerics::Measure(expected, product.values, m, output_type).max_ulp;
}

absl::StatusOr<int64_t> CountOracleMismatches(const WeightSource& source,
                                              std::span<const uint16_t> x, int m,
                                              const Product& product, DType output_type) {
  if (product.numerics == NumericsClass::kW8A8) return -1;
  const WeightSpec& spec = source.spec();
  int64_t mismatches = 0;
  std::vector<float> reference;
  for (int64_t first = 0; first < spec.n; first += kOracleRows) {
    const int64_t rows = std::min(kOracleRows, spec.n - first);
    reference.resize(static_cast<size_t>(m * rows));
    if (absl::Status status =
            numerics::ReferenceProduct(product.numerics, source, first, rows, x, m, reference);
        !status.ok()) {
      return status;
    }
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t i = 0; i < rows; ++i) {
        const float raw = reference[static_cast<size_t>(row * rows + i)];
        const float want =
            output_type == DType::kF32 ? CanonicalF32(raw) : Bf16ToF32(F32ToBf16(raw));
        const float got = product.values[static_cast<size_t>(row * spec.n + first + i)];
        mismatches += std::bit_cast<uint32_t>(want) != std::bit_cast<uint32_t>(got);
      }
    }
  }
  return mismatches;
}

}  // namespace fulcrum::cli
