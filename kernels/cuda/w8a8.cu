// Which width of tile keeps the most multiprocessors busy.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/w8a8.h"
#include "kernels/cuda/w8a8_product.cuh"

namespace fulcrum::cuda {
namespace {

struct Width {
  int64_t (*cost)(const Product&, const CudaContext&);
  cudaError_t (*launch)(const Product&, const std::byte*, const QuantisedRows&, const CudaContext&);
};
template <int kColumns>
constexpr Width kWidth = {&W8A8Cost<kColumns>, &LaunchW8A8<kColumns>};
constexpr Width kWidths[] = {kWidth<136>, kWidth<128>, kWidth<80>, kWidth<64>};

}  // namespace

cudaError_t MultiplyCodes(const ArmArgs& args, const QuantisedRows& x) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const Product p = MakeProduct(args);
  const Width* best = kWidths;
  for (const Width& width : kWidths) {
    if (width.cost(p, context) < best->cost(p, context)) best = &width;
  }
  return best->launch(p, static_cast<const CudaWeight*>(args.weight)->rows(), x, context);
}

}  // namespace fulcrum::cuda
