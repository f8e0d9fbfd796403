// Without CUDA there is no backend that has graphs.
// SPDX-License-Identifier: Apache-2.0
#include "tests/audit/support/stale_graph.h"

namespace fulcrum::test {

void PreferGraphs(Backend&) {}
absl::StatusOr<LaunchTimes> RunStaleGraph(Backend&, LaunchSlot&, const Launch&, const Launch&) {
  return absl::UnimplementedError("built without CUDA");
}

}  // namespace fulcrum::test
