// See auditor.h. What an output must be is kernels/numerics/oracle's; this file picks outputs
// and judges.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/auditor.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/oracle.h"
#include "scheduler/checker_thread.h"

namespace fulcrum {
namespace {

// Whether the reference says which bits an output of the arm has.
bool HasReference(const Arm& arm, const DeviceInfo& device) {
  if (arm.numerics == NumericsClass::kMma) {
    return device.mma_probe.model() != MmaModel::kNotFollowed;
  }
  return arm.numerics != NumericsClass::kW8A8;
}

// The output's stored bits.
uint32_t Bits(float value, DType type) {
  return type == DType::kF32 ? std::bit_cast<uint32_t>(CanonicalF32(value)) : F32ToBf16(value);
}
uint32_t Load(const std::byte* at, DType type) {
  uint32_t bits = 0;  // little-endian: the low bytes come first
  std::memcpy(&bits, at, SizeOf(type));
  return bits;
}

}  // namespace

class Auditor::Impl {
 public:
  Impl(const ShardStore& shards, Observer& observer, AuditorOptions options, BundleStore* bundles)
      : shards_(shards),
        observer_(observer),
        bundles_(bundles),
        options_(options),
        random_(options.seed),
        thread_(
            "fulcrum-audit", [this](const Job& job) { Judge(job); },
            {.every = options.scrub_interval, .run = [this] { ScrubNext(); }},
            [this](const absl::Status& what) { observer_.OnException(Thrower::kChecker, what); }) {}

  void Offer(double rate, const std::shared_ptr<const Shard>& shard, const Arm& arm, int m,
             const uint16_t* activations, const std::byte* output, DType output_type,
             uint64_t lever_epoch);
  void Flush() { thread_.Flush(); }
  void ScrubAll() {
    for (const auto& shard : shards_.Serving()) Scrub(*shard);
  }

 private:
  struct Sample {
    int row = 0;
    int64_t column = 0;
    uint32_t found = 0;
  };
  struct Job {
    std::shared_ptr<const Shard> shard;
    const Arm* arm = nullptr;
    DType output_type = DType::kBf16;
    uint64_t lever_epoch = 0;
    std::vector<Sample> samples = {};
    std::vector<uint16_t> activations = {};  // one row of K per sample
  };

  void Judge(const Job& job);
  void Keep(const Job& job, const Sample& sample, std::span<const uint16_t> x);
  void Scrub(const Shard& shard);
  void ScrubNext();

  const ShardStore& shards_;
  Observer& observer_;
  BundleStore* const bundles_;
  const AuditorOptions options_;
  absl::Mutex mu_;
  Random random_ ABSL_GUARDED_BY(mu_);
  std::string last_scrubbed_;  // audit thread's own
  CheckerThread<Job> thread_;
};

void Auditor::Impl::Offer(double rate, const std::shared_ptr<const Shard>& shard, const Arm& arm,
                          int m, const uint16_t* activations, const std::byte* output,
                          DType output_type, uint64_t lever_epoch) {
  if (!HasReference(arm, shard->backend->device())) return;
  Job job{.shard = shard, .arm = &arm, .output_type = output_type, .lever_epoch = lever_epoch};
  bool dropped = false;
  {
    absl::MutexLock lock(&mu_);
    if (random_.Unit() >= rate) return;
    dropped = thread_.pending() >= options_.max_pending;
    for (int i = 0; !dropped && i < options_.outputs_per_batch; ++i) {
      job.samples.push_back(
          {.row = static_cast<int>(random_.Below(m)), .column = random_.Below(shard->n())});
    }
  }
  if (dropped) {
    for (int i = 0; i < options_.outputs_per_batch; ++i) {
      observer_.OnAudit(arm, AuditResult::kDropped);
    }
    return;
  }
  const int64_t k = shard->k();
  for (Sample& sample : job.samples) {
    const uint16_t* const row = activations + sample.row * k;
    job.activations.insert(job.activations.end(), row, row + k);
    const int64_t index = sample.row * shard->n() + sample.column;
    sample.found = Load(output + static_cast<size_t>(index) * SizeOf(output_type), output_type);
  }
  thread_.Add(std::move(job));
}

void Auditor::Impl::Judge(const Job& job) {
  const size_t k = static_cast<size_t>(job.shard->k());
  for (size_t i = 0; i < job.samples.size(); ++i) {
    const Sample& sample = job.samples[i];
    const std::span<const uint16_t> x(job.activations.data() + i * k, k);
    const absl::StatusOr<float> reference =
        numerics::ReferenceElement(job.arm->numerics, *job.shard->source, sample.column, x);
    if (!reference.ok()) {
      observer_.OnAudit(*job.arm, AuditResult::kError);
      observer_.OnAuditError(job.shard->name, reference.status());
      continue;
    }
    const uint32_t expected = Bits(*reference, job.output_type);
    const bool match = expected == sample.found;
    observer_.OnAudit(*job.arm, match ? AuditResult::kMatch : AuditResult::kMismatch);
    if (match) continue;
    observer_.OnIncident({.what = "audit",
                          .shard = job.shard->name,
                          .shard_hash = job.shard->hash,
                          .device = job.shard->backend->device().id,
                          .arm = std::string(job.arm->name),
                          .shard_version = job.shard->version,
                          .column = sample.column,
                          .expected_bits = expected,
                          .found_bits = sample.found,
                          .lever_epoch = job.lever_epoch});
    Keep(job, sample, x);
  }
}

void Auditor::Impl::Keep(const Job& job, const Sample& sample, std::span<const uint16_t> x) {
  if (bundles_ == nullptr) return;
  numerics::Bundle bundle = BundleStore::About(*job.shard);
  bundle.found_by = "audit";
  bundle.detail = "an output differs from the reference of its class";
  bundle.arm = std::string(job.arm->name);
  bundle.numerics = job.arm->numerics;
  bundle.output_type = job.output_type;
  bundle.lever_epoch = job.lever_epoch;
  bundle.rows = 1;
  bundle.column = sample.column;
  bundle.columns = 1;
  bundle.activations.assign(x.begin(), x.end());
  bundle.outputs.resize(SizeOf(job.output_type));
  std::memcpy(bundle.outputs.data(), &sample.found, bundle.outputs.size());
  const std::string path = bundles_->Write(std::move(bundle));
  if (!path.empty()) observer_.OnBundle(path);
}

void Auditor::Impl::Scrub(const Shard& shard) {
  const absl::StatusOr<uint64_t> checksum = shard.weight->Checksum();
  if (!checksum.ok()) {
    observer_.OnAudit(kScrubArm, AuditResult::kError);
    observer_.OnAuditError(shard.name, checksum.status());
    return;
  }
  const bool match = *checksum == shard.checksum;
  observer_.OnAudit(kScrubArm, match ? AuditResult::kMatch : AuditResult::kMismatch);
  if (match) return;
  observer_.OnIncident({.what = "scrub",
                        .shard = shard.name,
                        .shard_hash = shard.hash,
                        .device = shard.backend->device().id,
                        .arm = std::string(kScrubArm.name),
                        .shard_version = shard.version});
}

// Round robin by name, so that shards may come and go between two scrubs.
void Auditor::Impl::ScrubNext() {
  const auto serving = shards_.Serving();  // by name
  if (serving.empty()) return;
  std::shared_ptr<const Shard> next = serving.front();
  for (const auto& shard : serving) {
    if (shard->name > last_scrubbed_) {
      next = shard;
      break;
    }
  }
  last_scrubbed_ = next->name;
  Scrub(*next);
}

Auditor::Auditor(const ShardStore& shards, Observer& observer, AuditorOptions options,
                 BundleStore* bundles)
    : impl_(std::make_unique<Impl>(shards, observer, options, bundles)) {}
Auditor::~Auditor() = default;

void Auditor::Offer(double rate, const std::shared_ptr<const Shard>& shard, const Arm& arm, int m,
                    const uint16_t* activations, const std::byte* output, DType output_type,
                    uint64_t lever_epoch) {
  impl_->Offer(rate, shard, arm, m, activations, output, output_type, lever_epoch);
}
void Auditor::Flush() { impl_->Flush(); }
void Auditor::ScrubAll() { impl_->ScrubAll(); }

}  // namespace fulcrum
