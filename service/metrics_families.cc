// The declarations: every family, its help, and all its series.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "kernels/ladder/ladder.h"
#include "service/metrics.h"

namespace fulcrum::service {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::Labels;

template <class Value>
std::string Label(Value value) {
  return std::string(Name(value));
}

// Up to the largest max_prefill_rows that a configuration may have.
const std::vector<double>& BatchRowBounds() {
  static const auto* const bounds = new std::vector<double>{
      1,  2,  3,  4,   5,   6,   7,    8,    10,   12,    14,    16,     20,     24,
      28, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536, 262144, 1048576};
  return *bounds;
}

const std::vector<double>& GrpcBounds() {
  static const auto* const bounds = new std::vector<double>(BucketBounds(20e-6, 2, 80, 1.3));
  return *bounds;
}

}  // namespace

std::string_view Name(CallMethod method) {
  return method == CallMethod::kProject ? "Project" : "ProjectStream";
}

std::span<const double> StageBounds(Stage stage) {
  // A check or a copy of a few hundred KiB takes microseconds: fine to 20 ms. What waits for a
  // device, or for a client to read, may take seconds; its quantiles are what people look at, so
  // its buckets are narrow enough for 15 % (metrics_test.cc). All see a stall of a minute. No more
  // than that takes: there is a series for every arm, phase and stage.
  static const auto* const kShort = new std::vector<double>(BucketBounds(2e-6, 0.02, 60));
  static const auto* const kLong = new std::vector<double>(BucketBounds(1e-5, 3, 60, 1.3));
  switch (stage) {
    case Stage::kAdmit:
    case Stage::kGather:
    case Stage::kCopyIn:
    case Stage::kCopyOut:
      return *kShort;
    case Stage::kQueue:
    case Stage::kKernel:
    case Stage::kReply:
      return *kLong;
  }
  return *kLong;
}

Metrics::Metrics(const MetricsSetup& setup)
    : stage_seconds_(std::make_shared<HistogramFamily>(
          "fulcrum_stage_seconds", "Time in one stage of a call's way, by the arm that ran.")),
      batch_rows_(std::make_shared<HistogramFamily>("fulcrum_batch_rows",
                                                    "Rows of a launch, by the arm that ran.")),
      grpc_seconds_(std::make_shared<HistogramFamily>(
          "grpc_server_handling_seconds",
          "Time from the start of an RPC until its status is sent.")) {
  MakeTiers(setup);
  MakeCalls(setup);
  MakeLevers();
  MakeNode(setup);
  MakeCollectables();
}

void Metrics::MakeTiers(const MetricsSetup& setup) {
  for (const std::span<const Arm> arms : setup.ladders) {
    Ladder ladder{.arms = arms, .tiers = {}};
    for (const Arm& arm : arms) {
      auto it = std::find_if(tiers_.begin(), tiers_.end(),
                             [&arm](const Tier& tier) { return tier.name == arm.name; });
      ladder.tiers.push_back(static_cast<size_t>(it - tiers_.begin()));
      if (it == tiers_.end()) tiers_.push_back(Tier{.name = arm.name});
    }
    ladders_.push_back(std::move(ladder));
  }
  auto& rows = BuildCounter()
                   .Name("fulcrum_rows_total")
                   .Help("Activation rows computed, by the arm that ran; once for each shard.")
                   .Register(*registry_);
  auto& launches = BuildCounter()
                       .Name("fulcrum_launches_total")
                       .Help("Launches, by the arm that ran and why the batch closed.")
                       .Register(*registry_);
  auto& weight_bytes = BuildCounter()
                           .Name("fulcrum_weight_bytes_total")
                           .Help("Resident weight bytes read by launches.")
                           .Register(*registry_);
  auto& audits = BuildCounter()
                     .Name("fulcrum_audits_total")
                     .Help(
                         "Outputs recomputed on the CPU and compared bit for bit; tier scrub: "
                         "resident weights checksummed.")
                     .Register(*registry_);
  for (Tier& tier : tiers_) {
    const std::string name(tier.name);
    for (Phase phase : kAllPhases) {
      TierPhase& handles = tier.phases[static_cast<size_t>(phase)];
      const Labels labels = {{"tier", name}, {"phase", Label(phase)}};
      const auto with = [&labels](const char* key, std::string value) {
        Labels more = labels;
        more[key] = std::move(value);
        return more;
      };
      for (Step step : kAllSteps) {
        handles.rows[static_cast<size_t>(step)] = &rows.Add(with("step", Label(step)));
      }
      for (CloseReason reason : kAllCloseReasons) {
        handles.launches[static_cast<size_t>(reason)] =
            &launches.Add(with("close_reason", Label(reason)));
      }
      for (Stage stage : kAllStages) {
        handles.stages[static_cast<size_t>(stage)] =
            stage_seconds_->Add(with("stage", Label(stage)), StageBounds(stage));
      }
      handles.batch_rows = batch_rows_->Add(labels, BatchRowBounds());
      handles.weight_bytes = &weight_bytes.Add(labels);
    }
  }
  auto& shadows = BuildCounter()
                      .Name("fulcrum_shadow_checks_total")
                      .Help("Batches of a non-exact arm compared with class exact, by outcome.")
                      .Register(*registry_);
  auto& max_ulp = BuildGauge()
                      .Name("fulcrum_shadow_max_ulp")
                      .Help(
                          "Largest distance from class exact seen, in representable values, over "
                          "outputs of at least their row's RMS.")
                      .Register(*registry_);
  auto& worst_element =
      BuildGauge()
          .Name("fulcrum_shadow_worst_element")
          .Help("Largest difference from class exact seen, as a part of the row's RMS.")
          .Register(*registry_);
  auto& worst_row = BuildGauge()
                        .Name("fulcrum_shadow_worst_row_rms")
                        .Help("Largest relative RMS of a row against class exact seen.")
                        .Register(*registry_);
  for (const Ladder& ladder : ladders_) {
    for (size_t i = 0; i < ladder.arms.size(); ++i) {
      Tier& tier = tiers_[ladder.tiers[i]];
      if (ladder.arms[i].numerics == NumericsClass::kExact || tier.max_ulp != nullptr) continue;
      const Labels labels = {{"tier", std::string(tier.name)}};
      tier.max_ulp = &max_ulp.Add(labels);
      tier.worst_element = &worst_element.Add(labels);
      tier.worst_row = &worst_row.Add(labels);
      for (ShadowResult result : kAllShadowResults) {
        Labels more = labels;
        more["result"] = Label(result);
        tier.shadows[static_cast<size_t>(result)] = &shadows.Add(more);
      }
    }
  }
  tiers_.push_back(Tier{.name = kScrubTier});
  for (Tier& tier : tiers_) {
    for (AuditResult result : kAllAuditResults) {
      tier.audits[static_cast<size_t>(result)] =
          &audits.Add({{"tier", std::string(tier.name)}, {"result", Label(result)}});
    }
  }
  auto& declined = BuildCounter()
                       .Name("fulcrum_declined_total")
                       .Help("Batches where a lever asked for one arm and another ran.")
                       .Register(*registry_);
  for (const Ladder& ladder : ladders_) {
    for (const Arm& asked : ladder.arms) {
      if (asked.gate.lever == Lever::kAlwaysOpen) continue;
      for (const Arm& ran : ladder.arms) {
        if (&ran == &asked || ran.format != asked.format) continue;
        declined_[{&asked, &ran}] = &declined.Add({{"asked", std::string(asked.name)},
                                                   {"ran", std::string(ran.name)},
                                                   {"reason", Label(Decline::kCapability)}});
      }
    }
  }
}

void Metrics::MakeCalls(const MetricsSetup& setup) {
  auto& calls = BuildCounter()
                    .Name("fulcrum_calls_total")
                    .Help("Projection calls answered, by status.")
                    .Register(*registry_);
  for (CallMethod method : kAllCallMethods) {
    for (int code = 0; code < kStatusCodes; ++code) {
      calls_[static_cast<size_t>(method)][static_cast<size_t>(code)] =
          &calls.Add({{"method", Label(method)},
                      {"code", std::string(CodeName(static_cast<absl::StatusCode>(code)))}});
    }
  }
  auto& rejections = BuildCounter()
                         .Name("fulcrum_rejections_total")
                         .Help(
                             "Calls turned away for load or drain, or taken out of the queue, "
                             "before they ran. Calls that were wrong are in fulcrum_calls_total.")
                         .Register(*registry_);
  for (RejectReason reason : kAllRejectReasons) {
    rejections_[static_cast<size_t>(reason)] = &rejections.Add({{"reason", Label(reason)}});
  }
  auto& headers = BuildCounter()
                      .Name("fulcrum_identity_headers_total")
                      .Help(
                          "RPCs that brought the identity header: used, ignored because their peer "
                          "may not set it, or because it is empty or there twice.")
                      .Register(*registry_);
  for (HeaderUse use : kAllHeaderUses) {
    identity_headers_[static_cast<size_t>(use)] = &headers.Add({{"result", Label(use)}});
  }
  auto& started = BuildCounter()
                      .Name("grpc_server_started_total")
                      .Help("RPCs started on the server.")
                      .Register(*registry_);
  auto& handled = BuildCounter()
                      .Name("grpc_server_handled_total")
                      .Help("RPCs completed on the server, by status.")
                      .Register(*registry_);
  for (const auto& [full_name, type] : setup.grpc_methods) {
    const size_t slash = full_name.rfind('/');
    const Labels labels = {{"grpc_type", type},
                           {"grpc_service", full_name.substr(1, slash - 1)},
                           {"grpc_method", full_name.substr(slash + 1)}};
    GrpcSeries& series = grpc_.emplace_back();
    series.name = full_name;
    series.streams = type != "unary";
    series.labels = labels;
    series.started = &started.Add(labels);
    series.seconds = grpc_seconds_->Add(labels, GrpcBounds());
    for (int code = 0; code < kStatusCodes; ++code) {
      Labels with_code = labels;
      with_code["grpc_code"] = std::string(CodeName(static_cast<absl::StatusCode>(code)));
      series.handled[static_cast<size_t>(code)] = &handled.Add(with_code);
    }
  }
}

void Metrics::MakeLevers() {
  lever_epoch_ = &BuildGauge()
                      .Name("fulcrum_lever_epoch")
                      .Help("Number of the live lever snapshot.")
                      .Register(*registry_)
                      .Add({});
  auto& open = BuildGauge()
                   .Name("fulcrum_lever_open")
                   .Help("1 where the lever is open for the family; family all: the whole lever.")
                   .Register(*registry_);
  auto& value = BuildGauge()
                    .Name("fulcrum_lever_value")
                    .Help("Value of a lever that is a number.")
                    .Register(*registry_);
  lever_changes_ = &BuildCounter()
                        .Name("fulcrum_lever_changes_total")
                        .Help("Changes of a lever, by cause.")
                        .Register(*registry_);
  auto& state = BuildGauge()
                    .Name("fulcrum_canary_state")
                    .Help("1 for the state of the running or last canary; all 0: there was none.")
                    .Register(*registry_);
  for (CanaryState one : kAllCanaryStates) {
    canary_state_[static_cast<size_t>(one)] = &state.Add({{"state", Label(one)}});
  }
  auto& sides = BuildCounter()
                    .Name("fulcrum_canary_batches_total")
                    .Help("Launches picked while a canary ran, by the side they ran on.")
                    .Register(*registry_);
  auto& shadows = BuildCounter()
                      .Name("fulcrum_canary_shadow_checks_total")
                      .Help(
                          "Batches picked while a canary ran that were compared with class exact, "
                          "by the side they ran on.")
                      .Register(*registry_);
  for (const size_t side : {0, 1}) {
    const std::string name = side == 0 ? "control" : "canary";
    canary_batches_[side] = &sides.Add({{"side", name}});
    for (Family family : kAllFamilies) {
      for (ShadowResult result : kAllShadowResults) {
        canary_shadows_[side][static_cast<size_t>(family)][static_cast<size_t>(result)] =
            &shadows.Add({{"side", name}, {"family", Label(family)}, {"result", Label(result)}});
      }
    }
  }
  for (const LeverInfo& info : LeverTable()) {
    const auto index = static_cast<size_t>(info.lever);
    const std::string name(info.name);
    for (LeverCause cause : kAllLeverCauses) {
      lever_changes_->Add({{"lever", name}, {"cause", Label(cause)}});
    }
    switch (info.kind) {
      case LeverKind::kFamilyMap:
        for (Family family : kAllFamilies) {
          lever_open_[index][static_cast<size_t>(family)] =
              &open.Add({{"lever", name}, {"family", Label(family)}});
        }
        break;
      case LeverKind::kChoice:
        lever_open_[index][0] = &open.Add({{"lever", name}, {"family", "all"}});
        break;
      case LeverKind::kNumber:
        lever_value_[index] = &value.Add({{"lever", name}});
        break;
    }
  }
}

void Metrics::MakeNode(const MetricsSetup& setup) {
  const auto gauge = [this](const char* name, const char* help) {
    return &BuildGauge().Name(name).Help(help).Register(*registry_).Add({});
  };
  queue_rows_ = gauge("fulcrum_queue_rows", "Rows waiting for a launch.");
  queue_bytes_ = gauge("fulcrum_queue_bytes", "Payload bytes of waiting calls.");
  certificate_expiry_ = gauge("fulcrum_tls_certificate_expiry_seconds",
                              "When the served certificate ends, Unix time; 0 without TLS.");
  shard_bytes_ = &BuildGauge()
                      .Name("fulcrum_shard_bytes")
                      .Help("Bytes of resident weights.")
                      .Register(*registry_);
  device_faults_ = &BuildCounter()
                        .Name("fulcrum_device_faults_total")
                        .Help("Launches that failed on a device.")
                        .Register(*registry_);
  for (const std::string& device : setup.devices) {
    shard_bytes_->Add({{"device", device}});
    device_faults_->Add({{"device", device}});
  }
  incidents_ = &BuildCounter()
                    .Name("fulcrum_incidents_total")
                    .Help("Wrong bits found, by what found them.")
                    .Register(*registry_);
  for (const char* what : {"audit", "scrub"}) incidents_->Add({{"what", what}});
  auto& exceptions = BuildCounter()
                         .Name("fulcrum_exceptions_total")
                         .Help("Exceptions that were caught, by what threw; the log has the words.")
                         .Register(*registry_);
  for (Thrower thrower : kAllThrowers) {
    exceptions_[static_cast<size_t>(thrower)] = &exceptions.Add({{"where", Label(thrower)}});
  }
  dropped_observations_ = &BuildCounter()
                               .Name("fulcrum_dropped_observations_total")
                               .Help("Measured values that were not finite or were negative.")
                               .Register(*registry_)
                               .Add({});
  BuildGauge()
      .Name("fulcrum_build_info")
      .Help("Always 1; the labels say what runs.")
      .Register(*registry_)
      .Add({{"version", setup.version}, {"compiler", __VERSION__}})
      .Set(1);
}

}  // namespace fulcrum::service
