// The checks of a start, in its order.
// SPDX-License-Identifier: Apache-2.0
#include "service/validate.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/backend_factory.h"
#include "scheduler/lever_journal.h"
#include "service/backend_options.h"
#include "service/lever_sources.h"
#include "service/load_plan.h"

namespace fulcrum::service {
namespace {

// A first problem hides those of other variables, so each is tried alone; then all together.
void CheckVariables(const Config& config, std::string_view backend,
                    const std::map<std::string, std::string>& environment,
                    std::vector<std::string>* problems) {
  const size_t before = problems->size();
  for (const auto& variable : environment) {
    const absl::StatusOr<LeverSnapshot> alone = BuildLevers(Config{}, backend, {variable});
    if (!alone.ok()) problems->emplace_back(alone.status().message());
  }
  if (problems->size() > before) return;
  const absl::StatusOr<LeverSnapshot> together = BuildLevers(config, backend, environment);
  if (!together.ok()) problems->emplace_back(together.status().message());
}

}  // namespace

absl::Status ValidateStart(const Config& config,
                           const std::map<std::string, std::string>& environment) {
  std::vector<std::string> problems;
  const absl::Status text = CheckConfig(config);
  if (!text.ok()) problems.emplace_back(text.message());

  std::string kind = config.backend == "cuda" ? "cuda" : "cpu";
  std::vector<Backend*> devices;
  auto backends = MakeBackends(config.backend, BackendOptionsOf(config, environment));
  if (backends.ok()) {
    kind = std::string(backends->front()->name());
    for (const auto& backend : *backends) devices.push_back(backend.get());
  } else if (text.ok()) {
    problems.push_back(absl::StrCat("backend: ", backends.status().message()));
  }
  // What the configuration has wrong is listed already.
  CheckVariables(text.ok() ? config : Config{}, kind, environment, &problems);
  if (text.ok()) {
    LoadPlan plan = OpenModels(config);
    if (backends.ok()) PlaceModels(devices, plan);
    problems.insert(problems.end(), plan.problems.begin(), plan.problems.end());
    if (!config.lever_journal.empty()) {
      const absl::Status journal = LeverJournal::Check(config.lever_journal);
      if (!journal.ok()) problems.emplace_back(journal.message());
    }
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace fulcrum::service
