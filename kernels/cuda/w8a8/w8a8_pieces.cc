// Divides the rows of a launch of class w8a8 into pieces that fit into the scratch.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/w8a8/w8a8.h"

namespace fulcrum::cuda {

absl::Status InPieces(const ArmArgs& args, const char* arm, MultiplyPiece multiply) {
  const auto& weight = *static_cast<const CudaWeight*>(args.weight);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  if (weight.rows() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(weight.spec().name, ": was uploaded without the rows that W8A8 reads"));
  }
  const int64_t token_bytes = weight.layout().row_bytes + int64_t{4} * weight.layout().blocks;
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
    piece.activations =
        static_cast<const uint16_t*>(args.activations) + first * args.activation_pitch;
    piece.output = static_cast<std::byte*>(args.output) + first * row_bytes;
    piece.output_room = static_cast<int>(std::max<int64_t>(0, args.output_room - first));
    if (const cudaError_t error = multiply(piece, x); error != cudaSuccess) {
      return CudaStatus(error, arm);
    }
  }
  return absl::OkStatus();
}

cudaError_t QuantiseAndMultiply(const ArmArgs& args, const QuantisedRows& x) {
  const auto& weight = *static_cast<const CudaWeight*>(args.weight);
  const cudaError_t error =
      QuantiseRows(static_cast<const uint16_t*>(args.activations), args.activation_pitch, args.m,
                   static_cast<int>(weight.layout().blocks), x,
                   static_cast<const CudaContext*>(args.context)->stream);
  return error == cudaSuccess ? MultiplyCodes(args, x) : error;
}

}  // namespace fulcrum::cuda
