// bf16, class exact, every M.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/exact_arm.cuh"

namespace fulcrum::cuda {

absl::Status dense_gemv_bf16(const ArmArgs& args) {
  const Product p = MakeProduct(args);
  const cudaStream_t stream = StreamOf(args);
  const auto run = [&] {
    if (args.m == 1) return LaunchExact<Bf16Fragment, 1, 1>(p, stream);
    if (args.m <= 4) return LaunchExact<Bf16Fragment, 1, 4>(p, stream);
    return LaunchExact<Bf16Fragment, 1, 8>(p, stream);
  };
  return CudaStatus(run(), "dense_gemv_bf16");
}

}  // namespace fulcrum::cuda
