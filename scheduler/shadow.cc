// Sampling and grading of shadow checks. What is near enough is the budget's.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/shadow.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/budget.h"
#include "kernels/numerics/deviation.h"
#include "scheduler/checker_thread.h"
#include "scheduler/exact_columns.h"

namespace fulcrum {
namespace {

constexpr int64_t kColumnUnit = 128;

bool Graded(const Arm& arm) { return arm.numerics != NumericsClass::kExact; }

int64_t GradedTargets(std::span<const LaunchTarget> targets) {
  return std::count_if(targets.begin(), targets.end(),
                       [](const LaunchTarget& target) { return Graded(*target.arm); });
}

}  // namespace

class Shadow::Impl {
 public:
  Impl(Observer& observer, BundleStore* bundles, ShadowOptions options)
      : observer_(observer),
        bundles_(bundles),
        options_(options),
        random_(options.seed),
        thread_(
            "fulcrum-shadow",
            [this](const Job& job) {
              const auto release = absl::MakeCleanup([&job] { Release(job); });
              Grade(job);
            },
            {},
            [this](const absl::Status& what) { observer_.OnException(Thrower::kChecker, what); }) {}
  ~Impl() {
    for (const Job& job : thread_.Stop()) Release(job);
  }

  void Offer(const Batch& batch, Step step, bool must, const std::shared_ptr<const Shard>& shard,
             const LaunchTarget& target, const uint16_t* activations, const std::byte* output,
             DType output_type);
  void Flush() { thread_.Flush(); }

 private:
  struct Job {
    std::shared_ptr<const Shard> shard;
    const Arm* arm = nullptr;
    Step step = Step::kDecode;
    DType output_type = DType::kBf16;
    uint64_t lever_epoch = 0, canary = 0;
    bool candidate = false;
    std::shared_ptr<CanaryValve> valve = {};  // of a batch that must be graded
    int batch_rows = 0;
    int rows = 0;
    int64_t column = 0, columns = 0;
    std::vector<uint16_t> activations = {};  // [rows, K]
    std::vector<std::byte> outputs = {};     // [rows, columns]
  };

  static void Release(const Job& job) {
    if (job.valve != nullptr) job.valve->ungraded_rows.fetch_sub(job.batch_rows);
  }
  void Grade(const Job& job);
  void Tell(const Job& job, ShadowEvent event);

  Observer& observer_;
  BundleStore* const bundles_;
  const ShadowOptions options_;
  absl::Mutex mu_;
  Random random_ ABSL_GUARDED_BY(mu_);
  ExactColumns exact_;  // shadow thread's own
  CheckerThread<Job> thread_;
};

void Shadow::Impl::Offer(const Batch& batch, Step step, bool must,
                         const std::shared_ptr<const Shard>& shard, const LaunchTarget& target,
                         const uint16_t* activations, const std::byte* output, DType output_type) {
  if (!Graded(*target.arm)) return;
  const double rate = batch.levers->levers.number(Lever::kShadowRate);
  const int64_t n = shard->n(), k = shard->k();
  Job job{.shard = shard,
          .arm = target.arm,
          .step = step,
          .output_type = output_type,
          .lever_epoch = batch.levers->epoch,
          .canary = batch.canary == nullptr ? 0 : batch.canary->id,
          .candidate = batch.candidate(),
          .valve = must ? batch.canary->valve : nullptr,
          .batch_rows = batch.rows,
          .rows = std::min(batch.rows, options_.max_rows),
          .columns = std::min(n, options_.columns)};
  // Rows that were announced must not stay ungraded for ever, also when there is no memory for
  // them.
  auto release = absl::MakeCleanup([valve = job.valve, rows = job.batch_rows] {
    if (valve != nullptr) valve->ungraded_rows.fetch_sub(rows);
  });
  int64_t row = 0;
  bool dropped = false;
  {
    absl::MutexLock lock(&mu_);
    if (!must && random_.Unit() >= rate) return;
    // Those that must be graded are few by their own bound (CanaryValve).
    dropped = !must && thread_.pending() >= options_.max_pending;
    row = random_.Below(batch.rows - job.rows + 1);
    const int64_t units = (n - job.columns) / kColumnUnit + 1;
    job.column = random_.Below(units) * kColumnUnit;
  }
  if (dropped) {
    Tell(job, {.result = ShadowResult::kDropped});
    return;
  }
  job.activations.assign(activations + row * k, activations + (row + job.rows) * k);
  const size_t size = SizeOf(output_type);
  for (int i = 0; i < job.rows; ++i) {
    const std::byte* const from = output + static_cast<size_t>((row + i) * n + job.column) * size;
    job.outputs.insert(job.outputs.end(), from, from + static_cast<size_t>(job.columns) * size);
  }
  thread_.Add(std::move(job));
  std::move(release).Cancel();
}

void Shadow::Impl::Tell(const Job& job, ShadowEvent event) {
  event.arm = job.arm;
  event.shard = job.shard.get();
  event.lever_epoch = job.lever_epoch;
  event.canary = job.canary;
  event.candidate = job.candidate;
  observer_.OnShadow(event);
}

void Shadow::Impl::Grade(const Job& job) {
  std::vector<float> exact(static_cast<size_t>(job.rows * job.columns));
  const absl::Status made =
      exact_.Compute(job.shard->source, job.column, job.columns, job.activations, job.rows, exact);
  if (!made.ok()) {
    Tell(job, {.result = ShadowResult::kError, .detail = std::string(made.message())});
    return;
  }
  const std::vector<double> reference(exact.begin(), exact.end());
  std::vector<float> actual(exact.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (job.output_type == DType::kF32) {
      std::memcpy(&actual[i], job.outputs.data() + 4 * i, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, job.outputs.data() + 2 * i, 2);
      actual[i] = Bf16ToF32(bits);
    }
  }
  const numerics::Verdict verdict =
      job.arm->numerics == NumericsClass::kW8A8
          ? numerics::CheckW8A8Budget(reference, actual, job.rows, job.columns)
          : numerics::CheckBudget(reference, actual, job.rows, job.columns, job.shard->k(),
                                  job.output_type);
  const numerics::Deviation deviation =
      numerics::Measure(reference, actual, job.rows, job.output_type);
  ShadowEvent event{.result = verdict.ok ? ShadowResult::kPass : ShadowResult::kFail,
                    .max_ulp = deviation.max_ulp,
                    .worst_element = deviation.worst_element,
                    .worst_row_rms = deviation.worst_row};
  if (verdict.ok) {
    Tell(job, std::move(event));
    return;
  }
  event.detail = absl::StrCat("columns from ", job.column, ": ", verdict.Describe());
  Tell(job, event);  // the guard first: writing takes its time
  if (bundles_ == nullptr) return;
  numerics::Bundle bundle = BundleStore::About(*job.shard);
  bundle.found_by = "shadow";
  bundle.detail = event.detail;
  bundle.arm = std::string(job.arm->name);
  bundle.numerics = job.arm->numerics;
  bundle.step = job.step;
  bundle.output_type = job.output_type;
  bundle.lever_epoch = job.lever_epoch;
  bundle.rows = job.rows;
  bundle.column = job.column;
  bundle.columns = job.columns;
  bundle.activations = job.activations;
  bundle.outputs = job.outputs;
  const std::string path = bundles_->Write(std::move(bundle));
  if (!path.empty()) observer_.OnBundle(path);
}

Shadow::Shadow(Observer& observer, BundleStore* bundles, ShadowOptions options)
    : impl_(std::make_unique<Impl>(observer, bundles, options)) {}
Shadow::~Shadow() = default;

bool Shadow::Announce(const Batch& batch, std::span<const std::shared_ptr<const Shard>> shards,
                      std::span<const LaunchTarget> targets) {
  if (!batch.candidate()) return false;
  absl::InlinedVector<uint64_t, 4> generations;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (Graded(*targets[i].arm)) generations.push_back(shards[i]->generation);
  }
  CanaryValve& valve = *batch.canary->valve;
  if (generations.empty() || !valve.CountFirst(generations)) return false;
  valve.ungraded_rows.fetch_add(static_cast<int64_t>(generations.size()) * batch.rows);
  return true;
}

void Shadow::Withdraw(const Batch& batch, std::span<const LaunchTarget> targets) {
  batch.canary->valve->ungraded_rows.fetch_sub(GradedTargets(targets) * batch.rows);
}

void Shadow::Offer(const Batch& batch, Step step, bool must,
                   const std::shared_ptr<const Shard>& shard, const LaunchTarget& target,
                   const uint16_t* activations, const std::byte* output, DType output_type) {
  impl_->Offer(batch, step, must, shard, target, activations, output, output_type);
}

void Shadow::Flush() { impl_->Flush(); }

}  // namespace fulcrum
