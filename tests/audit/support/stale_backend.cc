// See stale_backend.h.
// SPDX-License-Identifier: Apache-2.0
#include "tests/audit/support/stale_backend.h"

#include <utility>

#include "tests/audit/support/stale_graph.h"
#include "tests/support/passing_backend.h"

namespace fulcrum::test {
namespace {

class StaleBackend final : public PassingBackend {
 public:
  StaleBackend(std::unique_ptr<Backend> real, std::shared_ptr<StalePlan> plan)
      : PassingBackend(std::move(real)), plan_(std::move(plan)), has_graphs_(name() == "cuda") {
    if (has_graphs_) PreferGraphs(this->real());
  }

  absl::StatusOr<LaunchTimes> Run(LaunchSlot& slot, const Launch& launch) override {
    if (!plan_->armed || launch.targets.size() != 1 || launch.targets[0].weight != plan_->of) {
      return real().Run(slot, launch);
    }
    const LaunchTarget target = {.arm = launch.targets[0].arm, .weight = plan_->before};
    Launch before = launch;
    before.targets = std::span(&target, 1);
    ++plan_->launches;
    return has_graphs_ ? RunStaleGraph(real(), slot, launch, before) : real().Run(slot, before);
  }

 private:
  const std::shared_ptr<StalePlan> plan_;
  const bool has_graphs_;
};

}  // namespace

std::unique_ptr<Backend> MakeStaleBackend(std::unique_ptr<Backend> real,
                                          std::shared_ptr<StalePlan> plan) {
  return std::make_unique<StaleBackend>(std::move(real), std::move(plan));
}

}  // namespace fulcrum::test
