// Size of the shared activation buffer.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/launch.h"

namespace fulcrum::cpu {

size_t CpuContext::ColumnBytes(const WeightSpec& spec) {
  // fp8, bf16: one F32 per activation. q2_0: int8 codes, and per chunk an F32 scale and a sum.
  const int64_t k = RoundUp(spec.k, ChunkLayout::kLanes * numerics::kQ2ChunkK);
  return static_cast<size_t>(kMaxDecodeRows * k * 4);
}

absl::Status CpuContext::ReserveColumns(const WeightSpec& spec) {
  const size_t bytes = ColumnBytes(spec);
  if (columns.size() >= bytes) return absl::OkStatus();
  absl::StatusOr<HostBuffer> larger = HostBuffer::Make(bytes);
  if (!larger.ok()) return larger.status();
  columns = *std::move(larger);
  return absl::OkStatus();
}

}  // namespace fulcrum::cpu
