// q2_0, class exact, one to four rows. A warp computes a few weight rows and plays all virtual
// threads of the order.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/q2/q2_lane_arm.cuh"
#include "kernels/cuda/q2/sm90_q2_stream_rows.cuh"

namespace fulcrum::cuda {
namespace {

Q2LaneKernel LoadingKernel(int m) {
  if (m == 1) return &Q2WarpRows<1>;
  if (m == 2) return &Q2WarpRows<2>;
  return m == 3 ? &Q2WarpRows<3> : &Q2WarpRows<4>;
}

using StreamKernel = void (*)(Q2StreamRows);
StreamKernel StreamingKernel(int m, int pairs) {
  if (m == 1) return pairs == 1 ? &Sm90Q2StreamRowsKernel<1, 1> : &Sm90Q2StreamRowsKernel<1, 2>;
  if (m == 2) return pairs == 1 ? &Sm90Q2StreamRowsKernel<2, 1> : &Sm90Q2StreamRowsKernel<2, 2>;
  return m == 3 ? &Sm90Q2StreamRowsKernel<3, 2> : &Sm90Q2StreamRowsKernel<4, 2>;
}

// *serves: whether the tiles fit; the tiles of fused weights have the same size.
cudaError_t Stream(const ArmArgs& args, bool* serves) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const int chunks = static_cast<const CudaWeight*>(args.weight)->layout().q2.chunks;
  const int pairs = Q2StreamPairs(args.m, chunks);
  const StreamKernel kernel = StreamingKernel(args.m, pairs);
  bool programmatic = context.programmatic;
  const auto launch = [&](const FusedWeight& target) {
    const auto& weight = *static_cast<const CudaWeight*>(target.weight);
    const Q2Layout& layout = weight.layout().q2;
    Q2StreamRows p = {.product = {.tiles = weight.codes(),
                                  .x = nullptr,
                                  .y = target.output,
                                  .y_pitch = target.output_pitch,
                                  .n = weight.layout().n,
                                  .layout = layout,
                                  .m = args.m,
                                  .y_f32 = args.output_type == DType::kF32},
                      .rows = static_cast<const uint16_t*>(args.activations),
                      .pitch = args.activation_pitch,
                      .tile_bytes = layout.TileBytes(),
                      .group_tiles = 0,
                      .longer_groups = 0,
                      .stages = 0,
                      .x_at = 0,
                      .barriers_at = 0,
                      .shared_bytes = 0,
                      .thread_blocks = 0,
                      .by_chunks = FastDivmod(layout.chunks)};
    *serves = p.Plan(static_cast<int>(weight.layout().tiles()), context.sm_count,
                     context.max_shared_bytes);
    if (!*serves) return cudaSuccess;
    if (const cudaError_t error = AllowShared(kernel, static_cast<size_t>(p.shared_bytes));
        error != cudaSuccess) {
      return error;
    }
    const KernelGrid grid = {.thread_blocks = dim3(static_cast<unsigned>(p.thread_blocks)),
                             .threads = Q2StreamThreads(pairs),
                             .shared_bytes = p.shared_bytes,
                             .programmatic = programmatic};
    programmatic = true;  // this launch precedes the next
    return LaunchKernel(kernel, grid, context.stream, p);
  };
  cudaError_t error = launch({args.weight, args.output, args.output_pitch});
  for (const FusedWeight& other : args.fused) {
    if (error == cudaSuccess && *serves) error = launch(other);
  }
  return error;
}

}  // namespace

absl::Status q2_0_warp_rows(const ArmArgs& args) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  bool serves = false;
  if (context.has_bulk_copies) {
    const cudaError_t error = Stream(args, &serves);
    if (error != cudaSuccess || serves) return CudaStatus(error, "q2_0_warp_rows");
  }
  const auto choose = [](const Q2LaneProduct& p, int*) { return LoadingKernel(p.m); };
  return CudaStatus(RunOnLanes(args, choose), "q2_0_warp_rows");
}

}  // namespace fulcrum::cuda
