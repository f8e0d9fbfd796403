// See cuda_weight.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/cuda_weight.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fulcrum::cuda {

absl::Status UploadedWeight::Check(const WeightSource& source) {
  const WeightSpec& spec = source.spec();
  if (spec.n < 1 || spec.k < 1) {
    return absl::InvalidArgumentError(absl::StrCat(spec.name,
                                                   ": cannot load a weight with N = ", spec.n,
                                                   ", K = ", spec.k, "; both must be at least 1"));
  }
  constexpr int64_t kMostQ2K = int64_t{1} << 20;  // offsets within a tile are ints
  if (spec.format == WeightFormat::kQ2_0 && ((spec.q2_block != 64 && spec.q2_block != 128) ||
                                             spec.k % spec.q2_block != 0 || spec.k > kMostQ2K)) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, ": K = ", spec.k, " in q2_0 blocks of ", spec.q2_block,
                     "; expected whole blocks of 64 or 128 and at most ", kMostQ2K));
  }
  const size_t expected = spec.format == WeightFormat::kFp8Block128
                              ? static_cast<size_t>(spec.scale_rows() * spec.scale_cols())
                              : 0;
  if (source.scales().size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(spec.name, ": ", source.scales().size(),
                                                   " block scales, expected ", expected));
  }
  return absl::OkStatus();
}

int64_t UploadedWeight::Bytes(const WeightSpec& spec, bool with_rows) {
  return TileLayout(spec, with_rows).bytes();
}

UploadedWeight::UploadedWeight(WeightSpec spec, bool with_rows, DeviceBuffer buffer,
                               std::shared_ptr<Scrubber> scrubber)
    : CudaWeight(std::move(spec), 0), buffer_(std::move(buffer)), scrubber_(std::move(scrubber)) {
  layout_ = TileLayout(spec_, with_rows);
  resident_bytes_ = layout_.bytes();
  codes_ = buffer_.data();
  if (layout_.scale_rows > 0) {
    scales_ = reinterpret_cast<const float*>(buffer_.data() + layout_.scale_offset());
  }
  if (layout_.row_bytes > 0) rows_ = buffer_.data() + layout_.rows_offset();
}

absl::StatusOr<std::shared_ptr<UploadedWeight>> UploadedWeight::Load(
    const WeightSource& source, bool with_rows, int device, Staging& staging,
    std::shared_ptr<Scrubber> scrubber) {
  const WeightSpec& spec = source.spec();
  const auto named = [&spec](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(spec.name, ": ", status.message()));
  };
  absl::StatusOr<DeviceBuffer> buffer =
      DeviceBuffer::Make(device, static_cast<size_t>(Bytes(spec, with_rows)));
  if (!buffer.ok()) return named(buffer.status());
  std::shared_ptr<UploadedWeight> weight(
      new UploadedWeight(spec, with_rows, *std::move(buffer), std::move(scrubber)));
  const absl::StatusOr<bool> has_nan =
      staging.Load(source, weight->layout_, weight->buffer_.data());
  if (!has_nan.ok()) return has_nan.status();
  weight->has_nan_ = *has_nan;
  return weight;
}

absl::StatusOr<uint64_t> UploadedWeight::Checksum() const {
  return scrubber_->Checksum(codes_, resident_bytes_);
}

absl::Status UploadedWeight::FlipBit(int64_t byte_offset, int bit) {
  if (byte_offset < 0 || byte_offset >= resident_bytes_ || bit < 0 || bit > 7) {
    return absl::OutOfRangeError(absl::StrCat(spec_.name, ": bit ", bit, " of byte ", byte_offset,
                                              "; the weight has ", resident_bytes_, " bytes"));
  }
  return scrubber_->Flip(buffer_.data() + byte_offset, bit);
}

}  // namespace fulcrum::cuda
