// Selects the tile with the lowest estimated time.
// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "kernels/cuda/w8a8/sm90_w8a8_gemm.cuh"
#include "kernels/cuda/w8a8/w8a8.h"

namespace fulcrum::cuda {
namespace {

struct Width {
  int64_t (*cost)(const GemmParams&, const CudaContext&);
  cudaError_t (*launch)(const GemmParams&, const std::byte*, const QuantisedRows&,
                        const CudaContext&);
  cudaError_t (*load)();
};
template <int kColumns, int kHalves>
constexpr Width kWidth = {&W8A8Cost<kColumns, kHalves>, &LaunchW8A8<kColumns, kHalves>,
                          &LoadW8A8Kernel<kColumns, kHalves>};
constexpr Width kWidths[] = {kWidth<136, 1>, kWidth<136, 2>, kWidth<96, 2>, kWidth<80, 2>,
                             kWidth<64, 1>};
static_assert(std::size(kWidths) == kW8A8Tiles);

}  // namespace

cudaError_t LoadW8A8() {
  for (const Width& width : kWidths) {
    if (const cudaError_t error = width.load(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t MultiplyCodes(const ArmArgs& args, const QuantisedRows& x, int tile) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const GemmParams p = MakeGemmParams(args);
  const Width* best = tile == kFastestTile ? kWidths : kWidths + tile;
  for (const Width& width : kWidths) {
    if (tile == kFastestTile && width.cost(p, context) < best->cost(p, context)) best = &width;
  }
  return best->launch(p, static_cast<const CudaWeight*>(args.weight)->rows(), x, context);
}

}  // namespace fulcrum::cuda
