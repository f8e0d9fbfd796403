// Every series of the node, declared once and made at start: counters and gauges are exposed at
// zero, histograms once observed. Label values come from tables (arms, enums, methods), never from
// callers. The scheduler reports through the Observer interface, the service through the functions
// below; both hold handles and look nothing up by name on a call's path. Exposition over HTTP is
// metrics_endpoint.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/ladder/arm.h"
#include "kernels/types.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "scheduler/call.h"
#include "scheduler/canary.h"
#include "scheduler/lever_store.h"
#include "scheduler/observer.h"
#include "service/grpc_status.h"
#include "service/histogram.h"
#include "service/identity.h"
#include "service/metrics_asked.h"
#include "service/metrics_canary.h"

namespace fulcrum::service {

// The methods that carry projection calls (label `method`).
enum class CallMethod : uint8_t { kProject, kProjectStream };
inline constexpr std::array kAllCallMethods = {CallMethod::kProject, CallMethod::kProjectStream};
std::string_view Name(CallMethod method);

// Bucket bounds of each stage, seconds.
std::span<const double> StageBounds(Stage stage);

// The tier under which audits of whole resident weights are counted; no arm has this name.
inline constexpr std::string_view kScrubTier = "scrub";

// A method of a gRPC service of this node. `type`: "unary", "server_stream", "bidi_stream".
struct GrpcMethodName {
  std::string full_name;  // "/fulcrum.v1.ProjectionService/Project"
  std::string type;
};

struct MetricsSetup {
  std::vector<std::span<const Arm>> ladders;  // of the backends; they outlive the metrics
  std::vector<std::string> devices;
  std::string version;
  std::vector<GrpcMethodName> grpc_methods;
};

class Metrics : public Observer {
 public:
  explicit Metrics(const MetricsSetup& setup);

  // A projection call is about to be answered (so that who has the answer sees it counted). Streams
  // count each of their calls.
  void CallAnswered(CallMethod method, absl::StatusCode code);
  // An RPC brought an identity header (identity.h).
  void IdentityHeader(HeaderUse use) { identity_headers_[static_cast<size_t>(use)]->Increment(); }
  // Stages that only the service sees (admit, reply), of a call that ran.
  void CallStage(const Arm& arm, Phase phase, Stage stage, double seconds);

  // Conventional gRPC server metrics. Index of a full method name, or -1 when it is not one of the
  // node's; the others ignore -1.
  int GrpcMethod(std::string_view full_name) const;
  bool GrpcStreams(int method) const;  // whether either side may send more than one message
  void GrpcStarted(int method);
  void GrpcHandled(int method, absl::StatusCode code);  // before the caller has the status
  void GrpcTook(int method, double seconds);            // once it is sent, or dropped

  void SetLevers(const LeverSnapshot& levers);
  void LeverChanged(const LeverEvent& event);
  void SetCanary(CanaryState state);
  // Where to read the running or last canary from, until the last scrape. Before the first.
  void SetCanarySource(CanarySeries::Source source) {
    canary_series_->SetSource(std::move(source));
  }
  // Whether something took effect that the lever journal lacks. As above.
  void SetJournalSource(std::function<double()> behind) {
    journal_behind_->SetSource(std::move(behind));
  }
  // What is in flight: projection calls, and RPCs by method (GrpcMethod). As above.
  void SetBookSource(std::function<int64_t()> calls, std::function<int64_t(int method)> rpcs);
  // A sample for each device. As above.
  void SetDeviceSources(AskedGauges::Source last_launch, AskedGauges::Source serving) {
    device_last_launch_->SetSource(std::move(last_launch));
    device_serving_->SetSource(std::move(serving));
  }
  // How many clients sent rows in the last minute. As above.
  void SetClientsSource(std::function<double()> clients) {
    clients_->SetSource(std::move(clients));
  }
  void SetShardBytes(std::string_view device, int64_t bytes);
  void SetCertificateExpiry(absl::Time expiry);

  // Observer.
  void OnLaunch(const LaunchEvent& event) override;
  void OnCallQueued(const Arm& arm, Phase phase, double seconds) override;
  void OnReject(RejectReason reason) override;
  void OnDeclined(const Arm& asked, const Arm& ran, std::string_view reason) override;
  void OnQueue(int64_t rows, int64_t bytes) override;
  void OnAudit(const Arm& arm, AuditResult result) override;
  void OnBatch(const BatchEvent& event) override;
  void OnShadow(const ShadowEvent& event) override;
  void OnIncident(const Incident& incident) override;
  void OnDeviceFault(std::string_view device, const absl::Status& status) override;
  void OnException(Thrower thrower, const absl::Status& what) override;

  // Everything to expose, for an exposer or a test.
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables() const;
  std::string Text() const;  // the exposition format

 private:
  static constexpr size_t kPhases = kAllPhases.size();
  static constexpr size_t kStages = kAllStages.size();

  // Handles of one (tier, phase).
  struct TierPhase {
    std::array<prometheus::Counter*, kAllSteps.size()> rows{};
    std::array<prometheus::Counter*, kAllCloseReasons.size()> launches{};
    std::array<Histogram*, kStages> stages{};
    Histogram* batch_rows = nullptr;
    prometheus::Counter* weight_bytes = nullptr;
  };
  struct Tier {
    std::string_view name;
    std::array<TierPhase, kPhases> phases = {};
    std::array<prometheus::Counter*, kAllAuditResults.size()> audits{};
    std::array<prometheus::Counter*, kAllShadowResults.size()> shadows{};
    prometheus::Gauge *max_ulp = nullptr, *worst_element = nullptr, *worst_row = nullptr;
  };
  struct Ladder {
    std::span<const Arm> arms;
    std::vector<size_t> tiers;  // index into tiers_, one an arm
  };
  struct GrpcSeries {
    std::string name;
    bool streams = false;
    prometheus::Labels labels;
    prometheus::Counter* started = nullptr;
    std::array<prometheus::Counter*, kStatusCodes> handled{};
    Histogram* seconds = nullptr;
  };

  void MakeTiers(const MetricsSetup& setup);
  void MakeCalls(const MetricsSetup& setup);
  void MakeLevers();
  void MakeNode(const MetricsSetup& setup);
  void MakeCollectables();
  Tier* TierOf(const Arm& arm);
  TierPhase* Find(const Arm& arm, Phase phase);
  void Observe(Histogram* histogram, double value);

  const std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  const std::shared_ptr<HistogramFamily> stage_seconds_, batch_rows_, grpc_seconds_;
  const std::shared_ptr<CanarySeries> canary_series_ = std::make_shared<CanarySeries>();
  const std::shared_ptr<AskedGauge> journal_behind_ = std::make_shared<AskedGauge>(
      "fulcrum_lever_journal_behind",
      "1 while something took effect that the lever journal lacks: no change is accepted then.");
  const std::shared_ptr<AskedGauge> inflight_calls_ = std::make_shared<AskedGauge>(
      "fulcrum_inflight_calls",
      "Projection calls from their headers, on a stream from their message, to their end.");
  const std::shared_ptr<AskedGauges> open_rpcs_ = std::make_shared<AskedGauges>(
      "fulcrum_open_rpcs", "RPCs that have begun and not ended, streams and watches among them.");
  const std::shared_ptr<AskedGauges> device_last_launch_ = std::make_shared<AskedGauges>(
      "fulcrum_device_last_launch_timestamp_seconds",
      "When the device's last successful launch ended, Unix time; 0: there was none.");
  const std::shared_ptr<AskedGauges> device_serving_ = std::make_shared<AskedGauges>(
      "fulcrum_device_serving",
      "1 while the device takes launches and completes them; 0 while it was stopped, hangs, or a "
      "loop of it has ended.");

  const std::shared_ptr<AskedGauge> clients_ = std::make_shared<AskedGauge>(
      "fulcrum_clients",
      "Clients whose calls ran in the last minute, as far as they are told apart.");

  std::vector<Ladder> ladders_;
  std::vector<Tier> tiers_;  // the arms by name, then "scrub" for audits of whole weights
  std::vector<GrpcSeries> grpc_;
  // By (asked, ran), for the one reason that a batch can meet.
  absl::flat_hash_map<std::pair<const Arm*, const Arm*>, prometheus::Counter*> declined_;
  std::array<std::array<prometheus::Counter*, kStatusCodes>, kAllCallMethods.size()> calls_{};
  std::array<prometheus::Counter*, kAllRejectReasons.size()> rejections_{};
  std::array<prometheus::Counter*, kAllHeaderUses.size()> identity_headers_{};
  prometheus::Gauge *queue_rows_ = nullptr, *queue_bytes_ = nullptr;
  prometheus::Gauge *lever_epoch_ = nullptr, *certificate_expiry_ = nullptr;
  std::array<std::array<prometheus::Gauge*, kAllFamilies.size()>, kLeverCount> lever_open_{};
  std::array<prometheus::Gauge*, kLeverCount> lever_value_{};
  prometheus::Family<prometheus::Counter>* lever_changes_ = nullptr;
  std::array<prometheus::Gauge*, kAllCanaryStates.size()> canary_state_{};
  std::array<prometheus::Counter*, 2> canary_batches_{};  // control, canary
  using ShadowsByFamily =
      std::array<std::array<prometheus::Counter*, kAllShadowResults.size()>, kAllFamilies.size()>;
  std::array<ShadowsByFamily, 2> canary_shadows_{};  // control, canary
  prometheus::Family<prometheus::Gauge>* shard_bytes_ = nullptr;
  prometheus::Family<prometheus::Counter>*device_faults_ = nullptr, *incidents_ = nullptr;
  std::array<prometheus::Counter*, kAllThrowers.size()> exceptions_{};
  prometheus::Counter* dropped_observations_ = nullptr;
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_;  // exposers hold no shares
};

}  // namespace fulcrum::service
