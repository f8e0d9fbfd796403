// A weight resident in host memory in the layout of layout.h, and the pass that repacks it there.
// Reading it fast is the arms'.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/host_buffer.h"

namespace fulcrum::cpu {

class CpuWeight : public ResidentWeight {
 public:
  // Streams the rows of `source` in pieces of 128 into the resident layout: never a second whole
  // copy. Errors of the source pass through; RESOURCE_EXHAUSTED when memory cannot be had.
  static absl::StatusOr<std::shared_ptr<CpuWeight>> Load(const WeightSource& source);
  static int64_t Bytes(const WeightSpec& spec);

  absl::StatusOr<uint64_t> Checksum() const override;
  absl::Status FlipBit(int64_t byte_offset, int bit) override;

  const uint8_t* data() const { return buffer_.as<const uint8_t>(); }
  // fp8: scales of a block of 128 rows, one per 128 of K. q2_0: FP16 scales of all rows.
  const float* BlockScales(int64_t block) const {
    return reinterpret_cast<const float*>(data() + scale_offset_) + block * spec_.scale_cols();
  }
  const uint16_t* HalfScales() const {
    return reinterpret_cast<const uint16_t*>(data() + scale_offset_);
  }
  // fp8: whether any code is NaN, which the fast decoders of some instruction sets do not handle.
  bool has_nan() const { return has_nan_; }

 private:
  CpuWeight(WeightSpec spec, HostBuffer buffer);
  absl::Status Pack(const WeightSource& source);
  void PackTiles(int64_t block, const std::byte* rows, int row_count);
  void PackChunks(int64_t first_row, const std::byte* rows, int row_count);

  HostBuffer buffer_;
  int64_t scale_offset_ = 0;
  bool has_nan_ = false;
};

}  // namespace fulcrum::cpu
