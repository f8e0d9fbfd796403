// Rows and columns of another source, read through it; the scale grid is cut likewise.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/slice.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/weights/row_range.h"

namespace fulcrum {
namespace {

// Bytes before column `k` of a row. `k` is on a block boundary or the row's end.
int64_t ColumnBytes(const WeightSpec& whole, int64_t k) {
  WeightSpec part = whole;
  part.k = k;
  return part.row_bytes();
}

class SliceSource final : public WeightSource {
 public:
  SliceSource(WeightSpec spec, std::shared_ptr<const WeightSource> whole, int64_t row,
              int64_t column_offset, std::vector<float> scales)
      : spec_(std::move(spec)),
        whole_(std::move(whole)),
        row_(row),
        column_offset_(column_offset),
        scales_(std::move(scales)) {}

  const WeightSpec& spec() const override { return spec_; }
  std::span<const float> scales() const override { return scales_; }
  void ReleasePages() const override { whole_->ReleasePages(); }
  std::string origin() const override { return whole_->origin(); }

  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
    if (absl::Status s = CheckRowRange(spec_, row, count, out.size()); !s.ok()) return s;
    const int64_t wide = whole_->spec().row_bytes(), narrow = spec_.row_bytes();
    if (wide == narrow) return whole_->ReadRows(row_ + row, count, out);
    // The columns between are read and dropped, in pieces that stay in the cache.
    constexpr int64_t kPieceBytes = 256 << 10;
    const int64_t piece = std::clamp<int64_t>(kPieceBytes / wide, 1, std::max<int64_t>(count, 1));
    std::vector<std::byte> buffer(static_cast<size_t>(piece * wide));
    for (int64_t done = 0; done < count; done += piece) {
      const int64_t rows = std::min(piece, count - done);
      const std::span<std::byte> in(buffer.data(), static_cast<size_t>(rows * wide));
      if (absl::Status s = whole_->ReadRows(row_ + row + done, rows, in); !s.ok()) return s;
      for (int64_t i = 0; i < rows; ++i) {
        std::memcpy(out.data() + (done + i) * narrow, in.data() + i * wide + column_offset_,
                    static_cast<size_t>(narrow));
      }
    }
    return absl::OkStatus();
  }

 private:
  const WeightSpec spec_;
  const std::shared_ptr<const WeightSource> whole_;
  const int64_t row_;
  const int64_t column_offset_;
  const std::vector<float> scales_;
};

struct Axis {
  const char* what;  // "rows" or "columns"
  int64_t begin, end, size;
  int64_t block;    // begin and end lie on multiples of it
  bool ragged_end;  // end may also be the matrix's end
};

absl::Status CheckAxis(const WeightSpec& spec, const Axis& axis) {
  if (axis.begin < 0 || axis.begin >= axis.end || axis.end > axis.size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: slice of %s [%d, %d) must be non-empty and inside [0, %d)", spec.name,
                        axis.what, axis.begin, axis.end, axis.size));
  }
  const bool end_ok = axis.end % axis.block == 0 || (axis.ragged_end && axis.end == axis.size);
  if (axis.begin % axis.block == 0 && end_ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: slice of %s [%d, %d) does not keep %s blocks whole: the %s must be a multiple of %d%s",
      spec.name, axis.what, axis.begin, axis.end, Name(spec.format),
      axis.begin % axis.block != 0 ? "begin" : "end", axis.block,
      axis.begin % axis.block == 0 && axis.ragged_end ? " or the matrix's end" : ""));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const WeightSource>> Slice(
    std::shared_ptr<const WeightSource> source, const SliceRange& range) {
  const WeightSpec& whole = source->spec();
  // What was given, for the error, but for a sum that would overflow.
  const auto end_of = [](int64_t begin, int64_t count, int64_t size) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if (count == -1) return size;
    count = std::max<int64_t>(count, 0);
    return begin > kMost - count ? kMost : begin + count;
  };
  if (range.row > whole.n || range.column > whole.k) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: slice begins at row %d, column %d of a %dx%d matrix", whole.name,
                        range.row, range.column, whole.n, whole.k));
  }
  const bool fp8 = whole.format == WeightFormat::kFp8Block128;
  const int64_t column_block = fp8                                   ? kFp8Block
                               : whole.format == WeightFormat::kQ2_0 ? whole.q2_block
                                                                     : 1;
  const Axis rows{"rows",  range.row,           end_of(range.row, range.rows, whole.n),
                  whole.n, fp8 ? kFp8Block : 1, fp8};
  const Axis columns{"columns", range.column, end_of(range.column, range.columns, whole.k),
                     whole.k,   column_block, fp8};
  for (const Axis* axis : {&rows, &columns}) {
    if (absl::Status s = CheckAxis(whole, *axis); !s.ok()) return s;
  }
  WeightSpec spec = whole;
  spec.name = absl::StrFormat("%s[%d:%d, %d:%d]", whole.name, rows.begin, rows.end, columns.begin,
                              columns.end);
  spec.n = rows.end - rows.begin;
  spec.k = columns.end - columns.begin;

  std::vector<float> scales;
  if (fp8) {
    const std::span<const float> grid = source->scales();
    for (int64_t i = 0; i < spec.scale_rows(); ++i) {
      const auto first = static_cast<size_t>((rows.begin / kFp8Block + i) * whole.scale_cols() +
                                             columns.begin / kFp8Block);
      const auto part = grid.subspan(first, static_cast<size_t>(spec.scale_cols()));
      scales.insert(scales.end(), part.begin(), part.end());
    }
  }
  const int64_t column_offset = ColumnBytes(whole, columns.begin);
  return std::make_shared<SliceSource>(std::move(spec), std::move(source), rows.begin,
                                       column_offset, std::move(scales));
}

}  // namespace fulcrum
