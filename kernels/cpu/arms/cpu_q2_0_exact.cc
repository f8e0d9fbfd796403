// q2_0 weights, class exact, every M: exact integer chunk sums, a SIMD lane being a chunk.
// Kernels per instruction set are in q2_avx512.cc, q2_avx2.cc and q2_portable.cc; this file
// prepares the activations and hands out rows.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/arms.h"
#include "kernels/cpu/q2_kernel.h"

namespace fulcrum::cpu {

absl::Status cpu_q2_0_exact(const ArmArgs& args) {
  const CpuContext& context = *static_cast<const CpuContext*>(args.context);
  const auto* const weight = static_cast<const CpuWeight*>(args.weight);
  const Q2Kernel kernel = ChooseQ2Kernel();
  const int threads = context.pool->threads();
  const Job job{.weight = weight,
                .args = args,
                .runs = ColumnRuns::Of(args.m, kernel.max_columns),
                .items = RowItems(weight->spec().n, threads),
                .threads = threads,
                .columns = context.columns.data()};
  context.pool->Run(Q2PrepareItems(job), [&](int64_t item, int) { Q2Prepare(job, item); });
  context.pool->Run(job.items.count(), [&](int64_t item, int thread) {
    Q2Item(job, kernel, item, context.thread_scratch(thread));
  });
  return absl::OkStatus();
}

}  // namespace fulcrum::cpu
