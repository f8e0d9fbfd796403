// A node's checking half around one backend, tied together as service/server.cc does: scheduler,
// checkers, canary, events, health and bundles, with a recorder in the way of what the checkers
// find. No wire.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "scheduler/auditor.h"
#include "scheduler/canary_control.h"
#include "scheduler/scheduler.h"
#include "scheduler/shadow.h"
#include "service/node_events.h"
#include "tests/support/activation_call.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {

// Passes everything on that the audit tells, and keeps it.
class AuditRecorder final : public Observer {
 public:
  struct Totals {
    int64_t audited = 0;         // outputs that were recomputed, of the arms counted
    int64_t at_first_wrong = 0;  // audited when the first was wrong, itself among them; 0: none was
    int64_t failed = 0;          // could not be recomputed, or were dropped
    std::vector<Incident> incidents;
    std::vector<std::string> bundles;
  };

  explicit AuditRecorder(Observer& next) : next_(next) {}

  // Starts counting anew. gated: of arms behind a lever alone.
  void Restart(bool gated = false) {
    absl::MutexLock lock(&mu_);
    totals_ = Totals();
    gated_ = gated;
  }
  Totals totals() const {
    absl::MutexLock lock(&mu_);
    return totals_;
  }

  // Blocks until so many outputs were judged since this was made, of all arms.
  void AwaitJudged(int64_t outputs) const {
    const absl::Time limit = absl::Now() + absl::Minutes(2);
    absl::MutexLock lock(&mu_);
    while (judged_ < outputs && !judged_more_.WaitWithDeadline(&mu_, limit)) {
    }
    EXPECT_GE(judged_, outputs);
  }

  void OnLaunch(const LaunchEvent& event) override { next_.OnLaunch(event); }
  void OnBatch(const BatchEvent& event) override { next_.OnBatch(event); }
  void OnShadow(const ShadowEvent& event) override { next_.OnShadow(event); }
  void OnAudit(const Arm& arm, AuditResult result) override {
    next_.OnAudit(arm, result);
    absl::MutexLock lock(&mu_);
    ++judged_;
    judged_more_.Signal();
    if (gated_ && arm.gate.lever == Lever::kAlwaysOpen) return;
    if (result != AuditResult::kMatch && result != AuditResult::kMismatch) {
      ++totals_.failed;
      return;
    }
    ++totals_.audited;
    if (result == AuditResult::kMismatch && totals_.at_first_wrong == 0) {
      totals_.at_first_wrong = totals_.audited;
    }
  }
  void OnIncident(const Incident& incident) override {
    next_.OnIncident(incident);
    absl::MutexLock lock(&mu_);
    totals_.incidents.push_back(incident);
  }
  void OnBundle(std::string_view path) override {
    next_.OnBundle(path);
    absl::MutexLock lock(&mu_);
    totals_.bundles.emplace_back(path);
  }
  void OnDeviceFault(std::string_view device, const absl::Status& why) override {
    next_.OnDeviceFault(device, why);
    ADD_FAILURE() << device << ": " << why;
  }

 private:
  Observer& next_;
  mutable absl::Mutex mu_;
  mutable absl::CondVar judged_more_;
  Totals totals_ ABSL_GUARDED_BY(mu_);
  bool gated_ ABSL_GUARDED_BY(mu_) = false;
  int64_t judged_ ABSL_GUARDED_BY(mu_) = 0;
};

struct AuditedNodeOptions {
  std::vector<LeverChange> levers = {};
  int outputs_per_batch = 64;
  bool stop_device = false;  // take it out of service when wrong bits were found
};

struct AuditedNode {
  AuditedNode(std::unique_ptr<Backend> of, const AuditedNodeOptions& options)
      : backend(std::move(of)),
        outputs_per_batch(options.outputs_per_batch),
        metrics({.ladders = {backend->ladder()},
                 .devices = {backend->device().id},
                 .version = "",
                 .grpc_methods = {}}),
        health({backend.get()}),
        events({backend.get()}, metrics, health, log,
               {.stop_device_on_mismatch = options.stop_device, .on_device_lost = [](auto&) {}}),
        store({backend.get()}, [this](const ShardInfo& info) { health.OnShard(info); }),
        // The queue holds whatever comes: what is dropped would not be counted as audited.
        auditor(store, control,
                {.outputs_per_batch = options.outputs_per_batch,
                 .max_pending = 100000,
                 .scrub_interval = {}},
                &bundles) {
    health.SetLoaded();
    EXPECT_TRUE(levers.Set({{"audit_rate", "1"}}, {}).ok());
    if (!options.levers.empty()) {
      const auto set = levers.Set(options.levers, {});
      EXPECT_TRUE(set.ok()) << set.status();
    }
  }
  ~AuditedNode() {
    scheduler.Drain(absl::InfiniteDuration());
    auditor.Flush();
    ::close(log_descriptor);
  }

  std::shared_ptr<const Shard> Load(const std::string& name,
                                    std::shared_ptr<const WeightSource> source) {
    auto shard = store.Load({.name = "models/m/shards/" + name,
                             .family = Family::kFfnGateUp,
                             .source = std::move(source),
                             .device = "",
                             .expect_hash = ""});
    EXPECT_TRUE(shard.ok()) << shard.status();
    return shard.ok() ? *std::move(shard) : nullptr;
  }
  // One call, answered and judged: the batch is offered after the reply, so that is waited for.
  std::shared_ptr<ActivationCall> Run(std::shared_ptr<const Shard> shard,
                                      std::vector<uint16_t> activations,
                                      std::string client = "client") {
    auto call = std::make_shared<ActivationCall>(std::move(shard), std::move(activations));
    call->client = std::move(client);
    call->output_type = DType::kBf16;  // what is served by default, and hides the most
    EXPECT_TRUE(Submit(scheduler, call).ok());
    EXPECT_TRUE(call->Await().ok()) << call->status;
    recorder.AwaitJudged(++calls * outputs_per_batch);
    auditor.Flush();  // the incident follows the judgement
    shadow.Flush();
    return call;
  }

  const TempDir folder;
  const std::unique_ptr<Backend> backend;
  const int64_t outputs_per_batch;
  int64_t calls = 0;
  const Clock clock;
  const std::string log_path = folder.At("log");
  const int log_descriptor = ::open(log_path.c_str(), O_CREAT | O_WRONLY, 0600);
  const service::Logger log{service::LogLevel::kError, log_descriptor};
  service::Metrics metrics;
  service::NodeHealth health;
  service::NodeEvents events;
  AuditRecorder recorder{events};
  LeverStore levers{clock};
  CanaryControl control{levers, recorder, clock, nullptr};
  ShardStore store;
  BundleStore bundles{folder.path(), "node"};
  Auditor auditor;
  Shadow shadow{control, &bundles, {}};
  Scheduler scheduler{{backend.get()}, levers, control, {&auditor, &shadow}, clock, {}};
};

}  // namespace fulcrum::test
