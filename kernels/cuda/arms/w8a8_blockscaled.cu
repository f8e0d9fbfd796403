// fp8, class w8a8, prefill of any number of rows: as many at a time as the scratch holds codes of.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/arms.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/w8a8.h"

namespace fulcrum::cuda {

absl::Status w8a8_blockscaled(const ArmArgs& args) {
  const auto& weight = *static_cast<const CudaWeight*>(args.weight);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  if (weight.rows() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(weight.spec().name, ": was uploaded without the rows that W8A8 reads"));
  }
  const auto blocks = static_cast<int>(weight.layout().blocks);
  const int64_t token_bytes = weight.layout().row_bytes + int64_t{4} * blocks;
  const int64_t fit = context.scratch_bytes / token_bytes / kTokenTile * kTokenTile;
  if (fit == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(weight.spec().name, ": K = ", weight.spec().k,
                                                     ": the scratch holds fewer than ", kTokenTile,
                                                     " rows"));
  }
  const int64_t most = std::min<int64_t>(fit, args.m);
  const int64_t pitch = (most + kTokenTile - 1) / kTokenTile * kTokenTile;
  const QuantisedRows x = {
      .codes = context.scratch,
      .scales = reinterpret_cast<float*>(context.scratch + pitch * weight.layout().row_bytes),
      .scale_pitch = pitch};
  const int64_t row_bytes = args.output_pitch * static_cast<int64_t>(SizeOf(args.output_type));
  ArmArgs piece = args;
  for (int64_t first = 0; first < args.m; first += most) {
    piece.m = static_cast<int>(std::min(most, args.m - first));
    const auto* const rows =
        static_cast<const uint16_t*>(args.activations) + first * args.activation_pitch;
    piece.output = static_cast<std::byte*>(args.output) + first * row_bytes;
    cudaError_t error =
        QuantiseRows(rows, args.activation_pitch, piece.m, blocks, x, context.stream);
    if (error == cudaSuccess) error = MultiplyCodes(piece, x);
    if (error != cudaSuccess) return CudaStatus(error, "w8a8_blockscaled");
  }
  return absl::OkStatus();
}

}  // namespace fulcrum::cuda
