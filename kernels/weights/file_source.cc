// Rows and scales read by position from checkpoint files, checked against the tensor they belong
// to.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/file_source.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/formats/bf16.h"
#include "kernels/weights/row_range.h"

namespace fulcrum {
namespace {

class FileSource final : public WeightSource {
 public:
  FileSource(WeightSpec spec, const TensorInfo& tensor, std::vector<float> scales)
      : spec_(std::move(spec)),
        file_(tensor.file),
        offset_(tensor.offset),
        bytes_(tensor.bytes),
        scales_(std::move(scales)) {}

  const WeightSpec& spec() const override { return spec_; }
  std::span<const float> scales() const override { return scales_; }
  std::string origin() const override { return file_->path(); }
  void ReleasePages() const override { file_->Release(offset_, bytes_); }

  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
    if (absl::Status s = CheckRowRange(spec_, row, count, out.size()); !s.ok()) return s;
    return file_->Read(offset_ + static_cast<uint64_t>(row * spec_.row_bytes()), out);
  }

 private:
  const WeightSpec spec_;
  const std::shared_ptr<const WeightFile> file_;
  const uint64_t offset_;
  const uint64_t bytes_;
  const std::vector<float> scales_;
};

absl::Status Refuse(const TensorInfo& tensor, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file->path(), ": tensor ", Quoted(tensor.name), ": ", what));
}

// What the readers and manifests found against a tensor.
absl::Status CheckUsable(const TensorInfo& tensor) {
  if (!tensor.undecided.empty()) return Refuse(tensor, tensor.undecided);
  if (!tensor.refused.empty()) return Refuse(tensor, tensor.refused);
  return absl::OkStatus();
}

absl::StatusOr<WeightSpec> SpecOf(const TensorInfo& tensor, WeightFormat format) {
  if (tensor.shape.size() != 2) {
    return Refuse(tensor, absl::StrCat("shape ", ShapeText(tensor.shape),
                                       " is not a matrix; expected [N, K]"));
  }
  WeightSpec spec{
      .name = tensor.name, .format = format, .n = tensor.shape[0], .k = tensor.shape[1]};
  if (spec.n == 0 || spec.k == 0) {
    return Refuse(tensor, absl::StrCat("shape ", ShapeText(tensor.shape), " holds no weights"));
  }
  return spec;
}

absl::StatusOr<std::vector<float>> ReadScales(const TensorInfo& tensor) {
  std::vector<std::byte> raw(tensor.bytes);
  if (absl::Status s = tensor.file->Read(tensor.offset, raw); !s.ok()) return s;
  const bool wide = tensor.type == TensorType::kF32;
  std::vector<float> scales(raw.size() / (wide ? sizeof(float) : sizeof(uint16_t)));
  for (size_t i = 0; i < scales.size(); ++i) {
    if (wide) {
      std::memcpy(&scales[i], raw.data() + i * sizeof(float), sizeof(float));
    } else {
      uint16_t bits;
      std::memcpy(&bits, raw.data() + i * sizeof(bits), sizeof(bits));
      scales[i] = Bf16ToF32(bits);
    }
  }
  return scales;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const WeightSource>> OpenPlainWeight(const TensorInfo& weight) {
  if (absl::Status s = CheckUsable(weight); !s.ok()) return s;
  if (weight.type != TensorType::kBf16 && weight.type != TensorType::kQ2_0) {
    return Refuse(weight, absl::StrCat("element type ", weight.dtype,
                                       " is not served; BF16, Q2_0 and block-scaled F8_E4M3 are"));
  }
  const bool q2 = weight.type == TensorType::kQ2_0;
  absl::StatusOr<WeightSpec> spec = SpecOf(weight, q2 ? WeightFormat::kQ2_0 : WeightFormat::kBf16);
  if (!spec.ok()) return spec.status();
  if (q2) spec->q2_block = weight.q2_block;
  return std::make_shared<FileSource>(*std::move(spec), weight, std::vector<float>());
}

absl::StatusOr<std::shared_ptr<const WeightSource>> OpenFp8Weight(const TensorInfo& weight,
                                                                  const TensorInfo* scale_inv) {
  if (absl::Status s = CheckUsable(weight); !s.ok()) return s;
  if (weight.type != TensorType::kF8E4m3) {
    return Refuse(weight, absl::StrCat("element type is ", weight.dtype, "; expected F8_E4M3"));
  }
  absl::StatusOr<WeightSpec> spec = SpecOf(weight, WeightFormat::kFp8Block128);
  if (!spec.ok()) return spec.status();
  const std::vector<int64_t> expected = {spec->scale_rows(), spec->scale_cols()};
  const std::string grid =
      absl::StrCat("F32 or BF16 ", ShapeText(expected), " (one scale per 128x128 block)");
  if (scale_inv == nullptr) {
    return Refuse(weight,
                  absl::StrCat("has no scale grid: expected ", weight.name, "_scale_inv, ", grid,
                               ", found none. Per-tensor and per-channel scales are "
                               "another format"));
  }
  if (absl::Status s = CheckUsable(*scale_inv); !s.ok()) return s;
  if ((scale_inv->type != TensorType::kF32 && scale_inv->type != TensorType::kBf16) ||
      scale_inv->shape != expected) {
    return Refuse(weight, absl::StrCat("scale grid ", Quoted(scale_inv->name), ": expected ", grid,
                                       " for weight ", ShapeText(weight.shape), ", found ",
                                       scale_inv->dtype, " ", ShapeText(scale_inv->shape)));
  }
  absl::StatusOr<std::vector<float>> scales = ReadScales(*scale_inv);
  if (!scales.ok()) return scales.status();
  return std::make_shared<FileSource>(*std::move(spec), weight, *std::move(scales));
}

}  // namespace fulcrum
