// fp8, class w8a8, prefill of any number of rows, multiplied by the vendor's library. Our own
// kernel of the same class multiplies what the library does not take.
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
  // The library writes rows in multiples of four.
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
  // The library expects the scales of one K block directly after those of the block before.
  QuantisedRows close = x;
  close.scale_pitch = rows;
  const cudaError_t error =
      QuantiseRows(static_cast<const uint16_t*>(args.activations), args.activation_pitch, args.m,
                   static_cast<int>(weight.layout().blocks), close, context.stream);
  if (error != cudaSuccess || context.library->Multiply(problem, context.stream)) return error;
  cudaGetLastError();  // clears the library's error, which would be reported by the next launch
  return QuantiseAndMultiply(args, x);
}

}  // namespace

absl::Status w8a8_cublaslt(const ArmArgs& args) {
  return InPieces(args, "w8a8_cublaslt", MultiplyByLibrary);
}

}  // namespace fulcrum::cuda
