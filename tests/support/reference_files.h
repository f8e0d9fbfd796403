// The weight files and products in tests/data, written by other implementations. Tensors are found
// by the byte offsets they have in those files, so none of our readers takes part; that the readers
// find the same bytes is their own tests' claim.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/formats/bf16.h"
#include "kernels/types.h"
#include "tests/support/random_weights.h"

namespace fulcrum::test {

inline std::vector<std::byte> ReadBytes(const std::string& path) {
  std::ifstream file(FULCRUM_TEST_DATA "/" + path, std::ios::binary);
  const std::vector<char> chars((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::byte> bytes(chars.size());
  if (!chars.empty()) std::memcpy(bytes.data(), chars.data(), chars.size());
  return bytes;
}

// The whole file as little-endian values of T. Empty when it cannot be read.
template <class T>
std::vector<T> ReadValues(const std::string& path) {
  const std::vector<std::byte> bytes = ReadBytes(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

struct ReferenceFile {
  const char* file;  // within tests/data
  const char* stem;  // of the tensor's .x.bf16 [m, k] and .y.f64 [m, n] files
  WeightFormat format;
  int64_t n, k;
  size_t offset;     // of the tensor's bytes
  bool bf16_scales;  // fp8: the scale grid follows the codes, as BF16 or F32

  friend std::ostream& operator<<(std::ostream& os, const ReferenceFile& f) { return os << f.stem; }
};

inline constexpr ReferenceFile kFp8Files[] = {
    {"fp8/model.layers.0.mlp.gate_proj.safetensors", "fp8/model.layers.0.mlp.gate_proj",
     WeightFormat::kFp8Block128, 384, 512, 256, false},
    {"fp8/model.layers.0.self_attn.k_proj.safetensors", "fp8/model.layers.0.self_attn.k_proj",
     WeightFormat::kFp8Block128, 256, 1024, 264, true},
    {"fp8/model.layers.1.mlp.down_proj.safetensors", "fp8/model.layers.1.mlp.down_proj",
     WeightFormat::kFp8Block128, 200, 576, 256, false},
};
inline constexpr ReferenceFile kQ2Files[] = {
    {"q2_0/mainline.gguf", "q2_0/blk.0.ffn_up.weight", WeightFormat::kQ2_0, 48, 640, 576, false},
    {"q2_0/mainline.gguf", "q2_0/blk.0.attn_q.weight", WeightFormat::kQ2_0, 64, 2560, 9216, false},
    {"q2_0/mainline.gguf", "q2_0/blk.0.ffn_gate_shexp.weight", WeightFormat::kQ2_0, 33, 128, 55296,
     false},
    {"q2_0/mainline.gguf", "q2_0/blk.1.ffn_down.weight", WeightFormat::kQ2_0, 5, 64, 56512, false},
};

// The tensor as a weight. The caller checks that the file was there (rows are not empty).
inline MemoryWeight Load(const ReferenceFile& f) {
  WeightSpec spec{.name = f.stem, .format = f.format, .n = f.n, .k = f.k};
  const std::vector<std::byte> bytes = ReadBytes(f.file);
  const size_t row_bytes = static_cast<size_t>(f.n * spec.row_bytes());
  if (bytes.size() < f.offset + row_bytes) return MemoryWeight(spec, {});
  const std::byte* const at = bytes.data() + f.offset;
  std::vector<std::byte> rows(at, at + row_bytes);
  std::vector<float> scales;
  if (f.format == WeightFormat::kFp8Block128) {
    scales.resize(static_cast<size_t>(spec.scale_rows() * spec.scale_cols()));
    for (size_t i = 0; i < scales.size(); ++i) {
      if (f.bf16_scales) {
        uint16_t bits = 0;
        std::memcpy(&bits, at + row_bytes + i * 2, 2);
        scales[i] = Bf16ToF32(bits);
      } else {
        std::memcpy(&scales[i], at + row_bytes + i * 4, 4);
      }
    }
  }
  return MemoryWeight(std::move(spec), std::move(rows), std::move(scales));
}

inline std::vector<uint16_t> LoadActivations(const ReferenceFile& f) {
  return ReadValues<uint16_t>(std::string(f.stem) + ".x.bf16");
}
inline std::vector<double> LoadProduct(const ReferenceFile& f) {
  return ReadValues<double>(std::string(f.stem) + ".y.f64");
}

}  // namespace fulcrum::test
