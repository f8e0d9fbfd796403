// The part of stale_backend.h that only a build with CUDA has: cuda/stale_graph.cc, else
// without_cuda/stale_graph.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/backend.h"

namespace fulcrum::test {

// Makes a CUDA backend run whatever can be captured as a graph, from the third use on.
void PreferGraphs(Backend& backend);
// Runs `launch` by the graph that was captured in `slot` for `before`, a launch of the same shape.
absl::StatusOr<LaunchTimes> RunStaleGraph(Backend& backend, LaunchSlot& slot, const Launch& launch,
                                          const Launch& before);

}  // namespace fulcrum::test
