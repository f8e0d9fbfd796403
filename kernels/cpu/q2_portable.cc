// q2_0 rows with plain loops: right on every machine, and the model for the fast kernels.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/q2_kernel.h"
#include "kernels/formats/bf16.h"

namespace fulcrum::cpu {
namespace {

void Row(const Q2Row& row, const Q2Column* columns, float* sums) {
  const Q2Column& x = columns[0];
  std::array<float, numerics::kQ2Threads> v{};
  for (int64_t chunk = 0; chunk < row.chunks; ++chunk) {
    const int64_t vector = chunk / ChunkLayout::kLanes, lane = chunk % ChunkLayout::kLanes;
    const int64_t lanes =
        std::min<int64_t>(ChunkLayout::kLanes, row.chunks - vector * ChunkLayout::kLanes);
    int32_t sum = x.minus_sums[chunk];
    for (int word = 0; word < 8; ++word) {
      uint32_t codes;
      std::memcpy(&codes, row.codes + vector * 128 + (word / 4 * lanes + lane) * 4, sizeof(codes));
      const int8_t* const q = x.codes + ((vector * 8 + word) * ChunkLayout::kLanes + lane) * 4;
      for (int b = 0; b < 4; ++b) {
        sum += static_cast<int32_t>(codes >> (8 * b + 2 * (word % 4)) & 3u) * q[b];
      }
    }
    const float d = F16ToF32(row.scales[chunk / row.chunks_per_scale]) * x.scales[chunk];
    float& acc = v[static_cast<size_t>(chunk % numerics::kQ2Threads)];
    acc = std::fma(d, static_cast<float>(sum), acc);
  }
  for (size_t l = 0; l < 32; ++l) v[l] = ((v[l] + v[32 + l]) + v[64 + l]) + v[96 + l];
  for (size_t stride = 16; stride > 0; stride /= 2) {
    for (size_t l = 0; l < stride; ++l) v[l] = v[l] + v[l + stride];
  }
  sums[0] = v[0];
}

constexpr Q2RowKernel kKernels[] = {&Row};

}  // namespace

Q2Kernel Q2KernelPortable() { return {kKernels, 1}; }

}  // namespace fulcrum::cpu
