// Where a weight matrix's logical bytes come from: a mapped checkpoint file, a slice of one, or a
// synthetic seed. Loading, hashing, auditing and the oracle all read through this one interface, so
// what the node serves and what it is audited against have the same origin.
// Implementations: safetensors.h, gguf.h, synthetic.h; slices of any of them: slice.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/types.h"

namespace fulcrum {

// Shape and format of one weight matrix W[N,K], row-major, logical (unpadded) sizes.
struct WeightSpec {
  std::string name;  // the tensor's name in its file, for errors and listings
  WeightFormat format = WeightFormat::kFp8Block128;
  int64_t n = 0;
  int64_t k = 0;
  int q2_block = 64;  // q2_0 only: weights per scale, 64 (18 bytes) or 128 (34 bytes)

  // Bytes of one logical row: fp8 K; bf16 2K; q2_0 (K / q2_block) blocks. K is a multiple of
  // q2_block for q2_0 (checked by the readers).
  int64_t row_bytes() const;
  // fp8 only: columns of the scale grid, ceil(K / 128); its rows are ceil(N / 128).
  int64_t scale_cols() const { return (k + 127) / 128; }
  int64_t scale_rows() const { return (n + 127) / 128; }
  // Weight bytes as in the file: n * row_bytes(), plus 4 bytes a scale for fp8.
  int64_t bytes() const;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const WeightSpec& spec() const = 0;

  // fp8: FP32 block scales [scale_rows, scale_cols] row-major, widened from the file's type; they
  // multiply. Empty for other formats.
  virtual std::span<const float> scales() const = 0;

  // Copies rows [row, row + count) in the file's own byte format into `out`, which holds exactly
  // count * row_bytes() bytes. Requires 0 <= row, row + count <= n. Thread-safe.
  // Errors: DATA_LOSS when the file changed or ended under us.
  virtual absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const = 0;

  // Tells the system that pages read so far may be dropped (no effect on what is read later).
  virtual void ReleasePages() const {}

  // Where the bytes are, for listings: a path, or "synthetic:...".
  virtual std::string origin() const = 0;
};

// Lower-case hex SHA-256 over (format, n, k, q2_block, rows, scales): equal content has an equal
// hash whatever file it came from. Reads all rows once, in pieces, then releases the pages.
absl::Status ContentHash(const WeightSource& source, std::string* hex);

// The sizes that every backend takes: the widest use 32-bit offsets within a row and a tile, and
// keep buffers of a few KiB for each unit of K. A larger matrix can be loaded in slices.
inline constexpr int64_t kMaxWeightN = int64_t{1} << 24;
inline constexpr int64_t kMaxWeightK = int64_t{1} << 20;
// INVALID_ARGUMENT unless 1 <= n <= kMaxWeightN and 1 <= k <= kMaxWeightK.
absl::Status CheckSize(const WeightSpec& spec);

// Scales that are legal and yet unusual, which hints at the writer of the file: a zero makes its
// whole block zero (ordinary quantisers write one for a block of zeros), a negative one turns its
// signs, a subnormal one has lost bits.
struct ScaleCounts {
  int64_t scales = 0;  // looked at: of the grid (fp8) or in the rows (q2_0)
  int64_t zero = 0;    // of both signs
  int64_t negative = 0;
  int64_t subnormal = 0;  // in the type that the file stores
};

// Refuses weights that are not finite numbers, naming tensor, row and column, of fp8 the block too:
// INVALID_ARGUMENT. These are NaN codes (fp8 0x7F and 0xFF), NaN and infinity (bf16), scales that
// are NaN or infinite, and fp8 scales whose product with the largest code, 448, leaves F32, whether
// or not the block has that code. (q2_0 cannot: 2 * 65504 is finite.)
// `counts`: filled in from all scales; then the whole weight is read although it is refused.
absl::Status CheckFinite(const WeightSource& source, ScaleCounts* counts = nullptr);
// The fp8 grid alone, which is in memory already; OK for other formats.
absl::Status CheckFiniteScales(const WeightSource& source, ScaleCounts* counts = nullptr);

// What can be said of a weight before its rows are read: its size and, unless `allow_nan`, that its
// scales are finite. Whatever the node serves has passed this, however it was named.
absl::Status CheckServable(const WeightSource& source, bool allow_nan);

// 64 lower-case hex digits, as ContentHash writes them.
bool IsContentHash(std::string_view text);

}  // namespace fulcrum
