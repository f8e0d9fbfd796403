// Per instruction set: one launch of an fp8 or bf16 arm, first the activations, then the rows.
// SPDX-License-Identifier: Apache-2.0
#if defined(FULCRUM_CPU_TILE_ARM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FULCRUM_CPU_TILE_ARM_INL_H_
#undef FULCRUM_CPU_TILE_ARM_INL_H_
#else
#define FULCRUM_CPU_TILE_ARM_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::cpu::HWY_NAMESPACE {

template <class Kernel>
absl::Status RunTileArm(const ArmArgs& args) {
  const CpuContext& context = *static_cast<const CpuContext*>(args.context);
  const auto* const weight = static_cast<const CpuWeight*>(args.weight);
  const int threads = context.pool->threads();
  const Job job{.weight = weight,
                .args = args,
                .runs = Kernel::Runs(args.m),
                .items = RowItems(weight->spec().n, threads),
                .threads = threads,
                .columns = context.columns.data()};
  context.pool->Run(ColumnsItems(job), [&](int64_t item, int) { PrepareColumns(job, item); });
  context.pool->Run(job.items.count(), [&](int64_t item, int thread) {
    Kernel::Item(job, item, context.thread_scratch(thread));
  });
  return absl::OkStatus();
}

}  // namespace fulcrum::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FULCRUM_CPU_TILE_ARM_INL_H_
