// fp8, class exact, one row. Two tiles a warp where there are enough of them to fill the device.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/exact_product.cuh"

namespace fulcrum::cuda {

absl::Status w8a16_gemv(const ArmArgs& args) {
  const Product p = MakeProduct(args);
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const auto run = [&] {
    if (static_cast<const CudaWeight*>(args.weight)->has_nan()) {
      return LaunchExact<Fp8Fragment<true>, 1, 1>(p, context.stream);
    }
    return p.tiles >= 4 * context.sm_count
               ? LaunchExact<Fp8Fragment<false>, 2, 1>(p, context.stream)
               : LaunchExact<Fp8Fragment<false>, 1, 1>(p, context.stream);
  };
  return CudaStatus(run(), "w8a16_gemv");
}

}  // namespace fulcrum::cuda
