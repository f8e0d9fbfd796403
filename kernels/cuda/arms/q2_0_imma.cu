// q2_0, class exact, up to 32 rows in one pass over the weights on integer tensor cores; a weight
// and those fused with it in one launch. Where a tile does not fit into shared memory, q2_0_mmvq
// serves with the same bits.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/cuda/arms.h"
#include "kernels/cuda/device/kernel_launch.h"
#include "kernels/cuda/q2/q2_imma_kernel.cuh"

namespace fulcrum::cuda {
namespace {

using ImmaKernel = void (*)(Q2ImmaArgs);

template <int kSpread>
ImmaKernel NarrowKernelOf(const Q2ImmaShapeOfWork& work) {
  if (!work.x_shared) return &Q2ImmaKernel<16, 2, 1, kSpread, false>;
  return work.step_tiles == 3 ? &Q2ImmaKernel<16, 3, 1, kSpread, true>
                              : &Q2ImmaKernel<16, 2, 1, kSpread, true>;
}
// The kernel for a choice of PlanQ2Imma.
ImmaKernel KernelOf(const Q2ImmaShapeOfWork& work) {
  if (work.column_tiles == 4) return &Q2ImmaKernel<8, 2, 4, 1, true>;
  if (work.column_tiles == 2) {
    return work.x_shared ? &Q2ImmaKernel<8, 4, 2, 1, true> : &Q2ImmaKernel<16, 2, 2, 1, false>;
  }
  return work.spread == 2 ? NarrowKernelOf<2>(work) : NarrowKernelOf<1>(work);
}

// Sets the launch's next targets; returns how many of `all` they are.
size_t TakeTargets(std::span<const FusedWeight> all, Q2ImmaArgs* launch) {
  const size_t count = std::min(all.size(), size_t{kQ2MostTargets});
  int tiles = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto& weight = *static_cast<const CudaWeight*>(all[i].weight);
    launch->targets[i] = {.tiles = weight.codes(),
                          .y = all[i].output,
                          .y_pitch = all[i].output_pitch,
                          .n = weight.layout().n,
                          .first_tile = tiles};
    tiles += static_cast<int>(weight.layout().tiles());
  }
  launch->target_count = static_cast<int>(count);
  launch->tiles = tiles;
  return count;
}

cudaError_t Run(const ArmArgs& args, bool* serves) {
  const auto& context = *static_cast<const CudaContext*>(args.context);
  const auto& layout = static_cast<const CudaWeight*>(args.weight)->layout().q2;
  std::vector<FusedWeight> targets = {{args.weight, args.output, args.output_pitch}};
  targets.insert(targets.end(), args.fused.begin(), args.fused.end());
  Q2ImmaArgs launch = {};
  launch.layout = layout;
  launch.tile_bytes = layout.TileBytes();
  launch.rows = static_cast<const uint16_t*>(args.activations);
  launch.pitch = args.activation_pitch;
  launch.x = context.scratch;
  launch.m = args.m;
  launch.y_f32 = args.output_type == DType::kF32;
  launch.by_m = FastDivmod(args.m);
  std::span<const FusedWeight> rest(targets);
  bool first = true;
  while (!rest.empty()) {
    const size_t taken = TakeTargets(rest, &launch);
    const Q2ImmaPlan plan =
        PlanQ2Imma({.tiles = launch.tiles, .layout = layout, .m = args.m},
                   {context.sm_count, context.max_shared_bytes, context.has_bulk_copies});
    const int column_tiles = plan.column_groups * plan.work.column_tiles;
    *serves = plan.groups > 0 && (plan.fused || column_tiles * Q8FragmentTileBytes(layout.chunks) <=
                                                    context.scratch_bytes);
    if (!*serves) return cudaSuccess;  // no target is served: all have the same K and M
    launch.plan = plan;
    for (int i = 0; i < kQ2MostStepTiles; ++i) launch.tile_at[i] = i * plan.tile_bytes;
    launch.by_column_groups = FastDivmod(plan.column_groups);
    bool programmatic = context.programmatic;
    if (!plan.fused && first) {
      const Q8Input x = {launch.rows, launch.pitch, args.m, layout.chunks};
      if (const cudaError_t error = QuantiseForTensorCores(
              x, plan.work.spread, {plan.column_groups, plan.work.column_tiles}, context.scratch,
              context);
          error != cudaSuccess) {
        return error;
      }
    }
    // The launch before is ours: in an earlier round or the quantising kernel above.
    if (!plan.fused || !first) programmatic = context.has_bulk_copies;
    const ImmaKernel kernel = KernelOf(plan.work);
    if (const cudaError_t error = AllowShared(kernel, static_cast<size_t>(plan.shared_bytes));
        error != cudaSuccess) {
      return error;
    }
    const KernelGrid grid = {.thread_blocks = dim3(static_cast<unsigned>(plan.thread_blocks())),
                             .threads = Q2ImmaThreads(plan.work.warps, context.has_bulk_copies),
                             .shared_bytes = plan.shared_bytes,
                             .cluster = plan.parities == 1 ? 2 : 1,
                             .programmatic = programmatic};
    if (const cudaError_t error = LaunchKernel(kernel, grid, context.stream, launch);
        error != cudaSuccess) {
      return error;
    }
    rest = rest.subspan(taken);
    first = false;
  }
  return cudaSuccess;
}

// Eight rows at a time on q2_0_mmvq.
absl::Status RunInPieces(const ArmArgs& args) {
  constexpr int kPiece = 8;
  const auto size = static_cast<int64_t>(SizeOf(args.output_type));
  for (int first = 0; first < args.m; first += kPiece) {
    ArmArgs piece = args;
    piece.m = std::min(kPiece, args.m - first);
    piece.activations =
        static_cast<const uint16_t*>(args.activations) + first * args.activation_pitch;
    piece.output = static_cast<std::byte*>(args.output) + first * args.output_pitch * size;
    std::vector<FusedWeight> fused(args.fused.begin(), args.fused.end());
    for (FusedWeight& other : fused) {
      other.output = static_cast<std::byte*>(other.output) + first * other.output_pitch * size;
    }
    piece.fused = fused;
    if (absl::Status s = q2_0_mmvq(piece); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status q2_0_imma(const ArmArgs& args) {
  bool serves = false;
  const cudaError_t error = Run(args, &serves);
  if (error != cudaSuccess || serves) return CudaStatus(error, "q2_0_imma");
  return RunInPieces(args);
}

}  // namespace fulcrum::cuda
