// The load's thread and its report. See initial_load.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/initial_load.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/exceptions.h"

namespace fulcrum::service {
namespace {

absl::Status Outcome(const LoadSummary& summary) {
  if (summary.stopped) return absl::CancelledError("the node stopped while it loaded");
  if (summary.failed.empty()) return absl::OkStatus();
  const LoadSummary::Failed& first = summary.failed.front();
  const size_t more = summary.failed.size() - 1;
  return absl::Status(first.status.code(),
                      absl::StrCat("cannot load ", first.name, ": ", first.status.message(),
                                   more == 0 ? "" : absl::StrCat(" (and ", more, " more failed)")));
}

}  // namespace

InitialLoad::InitialLoad(const Config& config, LoadPlan plan, ShardLoader& loader,
                         NodeHealth& health, const Logger& log,
                         std::function<void(const absl::Status& why)> on_failure)
    : config_(config),
      plan_(std::move(plan)),
      loader_(loader),
      health_(health),
      log_(log),
      on_failure_(std::move(on_failure)) {}

InitialLoad::~InitialLoad() {
  RequestStop();
  Join();
}

void InitialLoad::Start() {
  thread_ = std::thread([this] {
    // A load that ran out of memory is a shard that cannot be served, as any other is.
    if (absl::Status thrown = Caught([this] { Run(); }); !thrown.ok()) Failed(std::move(thrown));
  });
}

void InitialLoad::Join() {
  if (thread_.joinable()) thread_.join();
}

absl::Status InitialLoad::Await() const {
  absl::MutexLock lock(&mu_);
  while (!status_) ended_.Wait(&mu_);
  return *status_;
}

size_t InitialLoad::ReportSkips() const {
  constexpr size_t kMostReasons = 20;  // of a model: names that others chose may make any number
  size_t skipped = 0;
  for (const LoadPlan::Skips& skips : plan_.skips) {
    const std::vector<SkipCount> reasons = CountByReason(skips.tensors);
    for (size_t i = 0; i < reasons.size() && i < kMostReasons; ++i) {
      log_.Info("tensors not served", {{"model", skips.model},
                                       {"reason", reasons[i].reason},
                                       {"count", reasons[i].count},
                                       {"example", reasons[i].example}});
    }
    if (reasons.size() > kMostReasons) {
      log_.Info("tensors not served",
                {{"model", skips.model},
                 {"reason", "others, which log_level debug and `fulcrum inspect` list"},
                 {"reasons", reasons.size() - kMostReasons}});
    }
    for (const SkippedTensor& tensor : skips.tensors) {
      log_.Debug("tensor not served",
                 {{"model", skips.model}, {"tensor", tensor.tensor}, {"reason", tensor.reason}});
    }
    skipped += skips.tensors.size();
  }
  return skipped;
}

void InitialLoad::Run() {
  const absl::Time begin = absl::Now();
  const size_t skipped = ReportSkips();
  const LoadSummary summary = loader_.LoadAll(
      std::move(plan_),
      [this](const LoadProgress& progress) {
        if (progress.status.ok()) {
          log_.Debug("loaded", {{"name", progress.name},
                                {"done", progress.done},
                                {"of", progress.total},
                                {"seconds", progress.took}});
        } else {
          log_.Error("load failed", {{"name", progress.name}, {"error", progress.status}});
        }
      },
      stop_);
  absl::Status outcome = Outcome(summary);
  if (outcome.ok()) {
    health_.SetLoaded();
    if (summary.loaded == 0) {
      log_.Warn("no shard is configured",
                {{"hint", config_.weight_roots.empty()
                              ? "this node can answer no call: set models, or "
                                "weight_roots for LoadShard"
                              : "calls are answered once LoadShard was called"}});
    }
    log_.Info("serving", {{"shards", summary.loaded},
                          {"resident_bytes", summary.resident_bytes},
                          {"skipped_tensors", skipped},
                          {"seconds", absl::Now() - begin}});
  } else if (!summary.stopped) {
    return Failed(std::move(outcome));
  }
  End(std::move(outcome));
}

void InitialLoad::Failed(absl::Status why) {
  (void)Caught([&] { on_failure_(why); });
  End(std::move(why));
}

void InitialLoad::End(absl::Status outcome) {
  absl::MutexLock lock(&mu_);
  status_ = std::move(outcome);
  ended_.SignalAll();
}

}  // namespace fulcrum::service
