// What each event adds to the series.
// SPDX-License-Identifier: Apache-2.0
#include "service/metrics.h"

#include "prometheus/text_serializer.h"

namespace fulcrum::service {
namespace {

// A status code as an index; what no table knows is UNKNOWN.
size_t CodeIndex(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < size_t{kStatusCodes} ? index : static_cast<size_t>(absl::StatusCode::kUnknown);
}

// What a scrape that runs out of memory misses, it misses: the scraper's thread is not ours.
class Unthrowing final : public prometheus::Collectable {
 public:
  Unthrowing(std::shared_ptr<prometheus::Collectable> inner, prometheus::Counter* thrown)
      : inner_(std::move(inner)), thrown_(thrown) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    if (!Caught([&] { families = inner_->Collect(); }).ok()) thrown_->Increment();
    return families;
  }

 private:
  const std::shared_ptr<prometheus::Collectable> inner_;
  prometheus::Counter* const thrown_;
};

}  // namespace

Metrics::Tier* Metrics::TierOf(const Arm& arm) {
  // Arms are rows of the ladders' arrays: the place in the array is the index.
  for (const Ladder& ladder : ladders_) {
    const Arm* const begin = ladder.arms.data();
    if (&arm >= begin && &arm < begin + ladder.arms.size()) {
      return &tiers_[ladder.tiers[static_cast<size_t>(&arm - begin)]];
    }
  }
  return arm.name == kScrubTier ? &tiers_.back() : nullptr;
}

Metrics::TierPhase* Metrics::Find(const Arm& arm, Phase phase) {
  Tier* const tier = TierOf(arm);
  if (tier == nullptr || tier->name == kScrubTier) return nullptr;
  return &tier->phases[static_cast<size_t>(phase)];
}

void Metrics::Observe(Histogram* histogram, double value) {
  if (!histogram->Observe(value)) dropped_observations_->Increment();
}

void Metrics::CallAnswered(CallMethod method, absl::StatusCode code) {
  calls_[static_cast<size_t>(method)][CodeIndex(code)]->Increment();
}

void Metrics::CallStage(const Arm& arm, Phase phase, Stage stage, double seconds) {
  if (TierPhase* handles = Find(arm, phase)) {
    Observe(handles->stages[static_cast<size_t>(stage)], seconds);
  }
}

int Metrics::GrpcMethod(std::string_view full_name) const {
  for (size_t i = 0; i < grpc_.size(); ++i) {
    if (grpc_[i].name == full_name) return static_cast<int>(i);
  }
  return -1;
}

bool Metrics::GrpcStreams(int method) const {
  return method >= 0 && grpc_[static_cast<size_t>(method)].streams;
}

void Metrics::GrpcStarted(int method) {
  if (method >= 0) grpc_[static_cast<size_t>(method)].started->Increment();
}

void Metrics::GrpcHandled(int method, absl::StatusCode code) {
  if (method >= 0) grpc_[static_cast<size_t>(method)].handled[CodeIndex(code)]->Increment();
}

void Metrics::GrpcTook(int method, double seconds) {
  if (method >= 0) Observe(grpc_[static_cast<size_t>(method)].seconds, seconds);
}

void Metrics::SetLevers(const LeverSnapshot& levers) {
  lever_epoch_->Set(static_cast<double>(levers.epoch));
  for (const LeverInfo& info : LeverTable()) {
    const auto index = static_cast<size_t>(info.lever);
    switch (info.kind) {
      case LeverKind::kFamilyMap:
        for (Family family : kAllFamilies) {
          lever_open_[index][static_cast<size_t>(family)]->Set(
              levers.levers.choice(info.lever, family) != 0 ? 1 : 0);
        }
        break;
      case LeverKind::kChoice:
        lever_open_[index][0]->Set(levers.levers.choice(info.lever) != 0 ? 1 : 0);
        break;
      case LeverKind::kNumber:
        lever_value_[index]->Set(levers.levers.number(info.lever));
        break;
    }
  }
}

void Metrics::LeverChanged(const LeverEvent& event) {
  lever_changes_->Add({{"lever", event.lever}, {"cause", std::string(Name(event.cause))}})
      .Increment();
}

void Metrics::SetCanary(CanaryState state) {
  for (CanaryState other : kAllCanaryStates) {
    canary_state_[static_cast<size_t>(other)]->Set(other == state ? 1 : 0);
  }
}

void Metrics::SetShardBytes(std::string_view device, int64_t bytes) {
  shard_bytes_->Add({{"device", std::string(device)}}).Set(static_cast<double>(bytes));
}

void Metrics::SetCertificateExpiry(absl::Time expiry) {
  certificate_expiry_->Set(static_cast<double>(absl::ToUnixSeconds(expiry)));
}

void Metrics::OnLaunch(const LaunchEvent& event) {
  TierPhase* const handles = Find(*event.arm, PhaseOf(event.shard->family));
  if (handles == nullptr) return;
  handles->rows[static_cast<size_t>(event.step)]->Increment(event.rows);
  handles->launches[static_cast<size_t>(event.close_reason)]->Increment();
  Observe(handles->stages[static_cast<size_t>(Stage::kGather)], event.gather);
  Observe(handles->stages[static_cast<size_t>(Stage::kKernel)], event.kernel);
  // A device that works in the host's memory copies nothing: no series of zeros.
  const auto copied = [&](Stage stage, double seconds) {
    if (seconds != 0) Observe(handles->stages[static_cast<size_t>(stage)], seconds);
  };
  copied(Stage::kCopyIn, event.copy_in);
  copied(Stage::kCopyOut, event.copy_out);
  Observe(handles->batch_rows, event.rows);
  // A batch above the arm's rows per launch reads the weights once a piece.
  const int64_t pieces = (event.rows + event.arm->rows_per_launch - 1) / event.arm->rows_per_launch;
  handles->weight_bytes->Increment(
      static_cast<double>(pieces * event.shard->weight->resident_bytes()));
}

void Metrics::OnCallQueued(const Arm& arm, Phase phase, double seconds) {
  CallStage(arm, phase, Stage::kQueue, seconds);
}

void Metrics::OnReject(RejectReason reason) {
  rejections_[static_cast<size_t>(reason)]->Increment();
}

void Metrics::OnDeclined(const Arm& asked, const Arm& ran, std::string_view /*reason*/) {
  const auto it = declined_.find({&asked, &ran});
  if (it != declined_.end()) it->second->Increment();
}

void Metrics::OnQueue(int64_t rows, int64_t bytes) {
  queue_rows_->Set(static_cast<double>(rows));
  queue_bytes_->Set(static_cast<double>(bytes));
}

void Metrics::OnAudit(const Arm& arm, AuditResult result) {
  if (Tier* tier = TierOf(arm)) tier->audits[static_cast<size_t>(result)]->Increment();
}

void Metrics::OnBatch(const BatchEvent& event) {
  if (event.canary != 0) canary_batches_[event.candidate ? 1 : 0]->Increment();
}

void Metrics::OnShadow(const ShadowEvent& event) {
  Tier* const tier = TierOf(*event.arm);
  if (tier == nullptr || tier->max_ulp == nullptr) return;
  const auto result = static_cast<size_t>(event.result);
  tier->shadows[result]->Increment();
  if (event.canary != 0) {
    canary_shadows_[event.candidate ? 1 : 0][static_cast<size_t>(event.shard->family)][result]
        ->Increment();
  }
  // One thread reports these: no other may have raised a gauge between the look and the set.
  const auto raise = [](prometheus::Gauge* gauge, double value) {
    if (value > gauge->Value()) gauge->Set(value);
  };
  raise(tier->max_ulp, static_cast<double>(event.max_ulp));
  raise(tier->worst_element, event.worst_element);
  raise(tier->worst_row, event.worst_row_rms);
}

void Metrics::OnIncident(const Incident& incident) {
  incidents_->Add({{"what", incident.what}}).Increment();
}

void Metrics::OnDeviceFault(std::string_view device, const absl::Status&) {
  device_faults_->Add({{"device", std::string(device)}}).Increment();
}

void Metrics::OnException(Thrower thrower, const absl::Status&) {
  exceptions_[static_cast<size_t>(thrower)]->Increment();
}

void Metrics::SetBookSource(std::function<int64_t()> calls,
                            std::function<int64_t(int method)> rpcs) {
  inflight_calls_->SetSource([calls = std::move(calls)] { return static_cast<double>(calls()); });
  open_rpcs_->SetSource([this, rpcs = std::move(rpcs)] {
    std::vector<AskedGauges::Sample> samples;
    for (size_t i = 0; i < grpc_.size(); ++i) {
      samples.emplace_back(grpc_[i].labels, static_cast<double>(rpcs(static_cast<int>(i))));
    }
    return samples;
  });
}

void Metrics::MakeCollectables() {
  prometheus::Counter* const thrown = exceptions_[static_cast<size_t>(Thrower::kScrape)];
  const std::shared_ptr<prometheus::Collectable> all[] = {
      registry_,           stage_seconds_,  batch_rows_,     grpc_seconds_,
      canary_series_,      journal_behind_, inflight_calls_, open_rpcs_,
      device_last_launch_, device_serving_, clients_};
  for (const auto& one : all) collectables_.push_back(std::make_shared<Unthrowing>(one, thrown));
}

std::vector<std::shared_ptr<prometheus::Collectable>> Metrics::collectables() const {
  return collectables_;
}

std::string Metrics::Text() const {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& collectable : collectables()) {
    for (auto& family : collectable->Collect()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace fulcrum::service
