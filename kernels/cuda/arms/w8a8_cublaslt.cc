// fp8, class w8a8, prefill of any number of rows, multiplied by the vendor's library. What it does
// not take our own kernel does: of the same class, within the same launch.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/arms.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/w8a8/cublaslt.h"
#include "kernels/cuda/w8a8/w8a8.h"

namespace fulcrum::cuda {
namespace {

cudaError_t MultiplyByLibrary(const ArmArgs& args, const QuantisedRows& x) {
  const auto& weight = *static_cast<const CudaWeight*>(args.weight);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  // It writes whole fours of rows.
  const int rows = LibraryRows(args.m);
  if (context.library == nullptr || rows > std::max(args.m, args.output_room)) {
    return QuantiseAndMultiply(args, x);
  }
  const LtProblem problem = {.m = rows,
                             .n = weight.spec().n,
                             .k = weight.layout().row_bytes,
                             .weights = weight.rows(),
                             .activations = x.codes,
                             .output = args.output,
                             .output_type = args.output_type,
                             .output_pitch = args.output_pitch,
                             .weight_scales = weight.scales(),
                             .activation_scales = x.scales};
  if (!context.library->Takes(problem)) return QuantiseAndMultiply(args, x);
  // Its scales of one K block follow those of the block before without a gap.
  QuantisedRows close = x;
  close.scale_pitch = rows;
  const cudaError_t error =
      QuantiseRows(static_cast<const uint16_t*>(args.activations), args.activation_pitch, args.m,
                   static_cast<int>(weight.layout().blocks), close, context.stream);
  if (error != cudaSuccess || context.library->Multiply(problem, context.stream)) return error;
  cudaGetLastError();  // what it says to the next launch is not about that one
  return QuantiseAndMultiply(args, x);
}

}  // namespace

absl::Status w8a8_cublaslt(const ArmArgs& args) {
  return InPieces(args, "w8a8_cublaslt", MultiplyByLibrary);
}

}  // namespace fulcrum::cuda
