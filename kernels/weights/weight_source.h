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

// Refuses NaN codes (fp8 0x7F/0xFF, bf16 NaN or Inf is allowed only if finite_only is false) and
// non-finite scales, naming tensor, row and column: INVALID_ARGUMENT.
absl::Status CheckFinite(const WeightSource& source);
// The scales alone, which are in memory already.
absl::Status CheckFiniteScales(const WeightSource& source);

}  // namespace fulcrum
