// Reading, writing and making activations.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/payload.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/splitmix.h"

namespace fulcrum::cli {
namespace {

// A bijective mix of a counter: no state to carry, the same everywhere.
uint64_t Mix(uint64_t x) { return SplitMix(x + kSplitMixStep); }

// Sum of eight uniform bytes, scaled to mean 0 and deviation 1: no library function whose rounding
// differs between machines.
float Normal(uint64_t bits) {
  int sum = 0;
  for (int i = 0; i < 8; ++i) sum += static_cast<int>(bits >> (8 * i) & 0xff);
  return static_cast<float>(sum - 1020) / 209.0f;
}

absl::StatusOr<uintmax_t> FileSize(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  return size;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const absl::StatusOr<uintmax_t> size = FileSize(path);
  if (!size.ok()) return size.status();
  std::ifstream in(path, std::ios::binary);
  std::string bytes(*size, '\0');
  if (!in || !in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  }
  return bytes;
}

absl::Status WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

absl::StatusOr<Activations> MeasureActivations(const std::string& path, int64_t k) {
  const std::string extension = std::filesystem::path(path).extension().string();
  const std::optional<DType> type = ParseDType(extension.empty() ? extension : extension.substr(1));
  if (!type) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": its extension says the type: expected .bf16, .f16 or .f32, got \"",
                     extension, "\""));
  }
  const absl::StatusOr<uintmax_t> bytes = FileSize(path);
  if (!bytes.ok()) return bytes.status();
  const int64_t row_bytes = k * static_cast<int64_t>(SizeOf(*type));
  const auto size = static_cast<int64_t>(*bytes);
  if (size == 0 || size % row_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: expected whole rows of K = %d %s values (%d bytes each), got %d bytes",
                        path, k, extension.substr(1), row_bytes, size));
  }
  return Activations{.type = *type, .rows = size / row_bytes};
}

absl::StatusOr<Activations> ReadActivations(const std::string& path, int64_t k) {
  absl::StatusOr<Activations> activations = MeasureActivations(path, k);
  if (!activations.ok()) return activations;
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  const int64_t row_bytes = k * static_cast<int64_t>(SizeOf(activations->type));
  if (static_cast<int64_t>(bytes->size()) != activations->rows * row_bytes) {
    return absl::UnavailableError(absl::StrCat(path, ": changed while it was read"));
  }
  activations->bytes = *std::move(bytes);
  return activations;
}

Activations RandomActivations(uint64_t seed, int64_t rows, int64_t k) {
  Activations out{.bytes = std::string(static_cast<size_t>(rows * k) * 2, '\0'),
                  .type = DType::kBf16,
                  .rows = rows};
  const uint64_t stream = Mix(seed);
  for (int64_t i = 0; i < rows * k; ++i) {
    const uint16_t bits = F32ToBf16(Normal(Mix(stream + static_cast<uint64_t>(i))));
    std::memcpy(out.bytes.data() + 2 * i, &bits, 2);
  }
  return out;
}

std::vector<uint16_t> ToBf16(const Activations& activations) {
  const size_t width = SizeOf(activations.type);
  std::vector<uint16_t> out(activations.bytes.size() / width);
  for (size_t i = 0; i < out.size(); ++i) {
    const char* const at = activations.bytes.data() + i * width;
    if (activations.type == DType::kF32) {
      float value;
      std::memcpy(&value, at, 4);
      out[i] = F32ToBf16(value);
    } else {
      std::memcpy(&out[i], at, 2);
      if (activations.type == DType::kF16) out[i] = F32ToBf16(F16ToF32(out[i]));
    }
  }
  return out;
}

absl::StatusOr<std::vector<double>> ReadF64(const std::string& path, int64_t count) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  if (bytes->size() != static_cast<size_t>(count) * 8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: expected %d float64 values (%d bytes), got %d bytes", path, count,
                        count * 8, bytes->size()));
  }
  std::vector<double> values(static_cast<size_t>(count));
  std::memcpy(values.data(), bytes->data(), bytes->size());
  return values;
}

}  // namespace fulcrum::cli
