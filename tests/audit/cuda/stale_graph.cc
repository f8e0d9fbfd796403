// The graph of one launch under the key of another. Everything used here is the cache's own
// interface: nothing in the backend exists for it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/audit/support/stale_graph.h"

#include <utility>

#include "kernels/cuda/runtime/cuda_backend.h"

namespace fulcrum::test {

void PreferGraphs(Backend& backend) {
  static_cast<cuda::CudaBackend&>(backend).set_run_options(
      {.way = cuda::RunOptions::Way::kDirect, .uses_before_graph = 1});
}

absl::StatusOr<LaunchTimes> RunStaleGraph(Backend& backend, LaunchSlot& slot, const Launch& launch,
                                          const Launch& before) {
  // The use after the first captures.
  for (int i = 0; i < 2; ++i) {
    if (auto times = backend.Run(slot, before); !times.ok()) return times.status();
  }
  auto& cuda_slot = static_cast<cuda::CudaSlot&>(slot);
  cuda::GraphCache& graphs = cuda_slot.graphs();
  cuda::GraphExec graph = std::move(graphs.Touch(cuda_slot.GraphKey(before)).graph);
  if (graph.get() == nullptr) return absl::InternalError("no graph was captured");
  graphs.Touch(cuda_slot.GraphKey(launch)).graph = std::move(graph);
  return backend.Run(slot, launch);
}

}  // namespace fulcrum::test
