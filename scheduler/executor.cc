// See executor.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/executor.h"

#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/ladder/ladder.h"
#include "scheduler/auditor.h"
#include "scheduler/ladder_query.h"
#include "scheduler/shadow.h"

namespace fulcrum {
namespace {

double& At(StageSeconds& stages, Stage stage) { return stages[static_cast<size_t>(stage)]; }

// What callers are told of a failed launch. A lost device is UNAVAILABLE (another node can serve);
// codes that mean "later" or "elsewhere" pass; anything else is our fault, never the caller's.
absl::Status ToCallers(const absl::Status& fault, const Backend& backend) {
  absl::StatusCode code = absl::StatusCode::kInternal;
  if (!backend.healthy() || absl::IsUnavailable(fault)) {
    code = absl::StatusCode::kUnavailable;
  } else if (absl::IsResourceExhausted(fault)) {
    code = absl::StatusCode::kResourceExhausted;
  }
  const std::string text = absl::StrFormat("launch failed on device %s: %s", backend.device().id,
                                           std::string(fault.message()));
  return absl::Status(code, text);
}

}  // namespace

Executor::Executor(Backend& backend, Observer& observer, Checkers checkers, const Clock& clock)
    : backend_(backend),
      observer_(observer),
      checkers_(checkers),
      clock_(clock),
      slot_(backend.NewSlot()) {}

template <class Body>
void Executor::Guard(absl::Status* status, Body&& body) {
  absl::Status thrown = Guarded(observer_, Thrower::kBatch, std::forward<Body>(body));
  if (!thrown.ok() && status != nullptr) *status = std::move(thrown);
}

absl::Status Executor::Fault(const absl::Status& fault) {
  absl::Status told;
  Guard(&told, [&] { told = ToCallers(fault, backend_); });
  return told;
}

absl::Status Executor::Choose(const Batch& batch) {
  const Call& first = *batch.calls.front().call;
  shards_ = first.shards;
  step_ = first.step;
  output_type_ = first.output_type;
  targets_.clear();
  output_bytes_.clear();
  for (const auto& shard : shards_) {
    const LadderQuery query = QueryFor(*shard, step_, first.policy);
    const LeverSet& levers = batch.levers->levers;
    const ClassSet classes = AllowedClasses(backend_.ladder(), query, levers);
    const Arm* arm = PickArm(backend_.ladder(), query, classes, levers, batch.rows);
    if (arm == nullptr) {
      return absl::InternalError(absl::StrFormat(
          "the ladder of device %s has no arm for %s %s of %d rows (shard %s)",
          backend_.device().id, Name(query.format), Name(step_), batch.rows, shard->name));
    }
    targets_.push_back({.arm = arm, .weight = shard->weight.get()});
    output_bytes_.push_back(static_cast<size_t>(batch.rows) * static_cast<size_t>(shard->n()) *
                            SizeOf(output_type_));
  }
  return absl::OkStatus();
}

absl::Status Executor::Gather(const Batch& batch) {
  const size_t k = static_cast<size_t>(shards_.front()->k());
  const size_t bytes = static_cast<size_t>(batch.rows) * k * sizeof(uint16_t);
  if (absl::Status s = slot_->Reserve(bytes, output_bytes_); !s.ok()) return s;
  uint16_t* out = slot_->activations();
  for (const TakenCall& taken : batch.calls) {
    taken.call->Gather(out);
    out += static_cast<size_t>(taken.call->rows) * k;
  }
  return absl::OkStatus();
}

absl::Status Executor::Launch(const Batch& batch) {
  stages_ = {};
  absl::Status status;
  Guard(&status, [&] {
    status = Choose(batch);
    if (status.ok()) status = Gather(batch);
  });
  At(stages_, Stage::kGather) = absl::ToDoubleSeconds(clock_.Now() - batch.picked);
  if (!status.ok()) return Fault(status);

  absl::StatusOr<LaunchTimes> times = LaunchTimes();
  must_check_ = false;
  Guard(&status, [&] {
    must_check_ =
        checkers_.shadow != nullptr && checkers_.shadow->Announce(batch, shards_, targets_);
    times =
        backend_.Run(*slot_, {.targets = targets_, .m = batch.rows, .output_type = output_type_});
  });
  if (!status.ok()) times = status;
  if (!times.ok()) {
    Guard(nullptr, [&] {
      if (must_check_) checkers_.shadow->Withdraw(batch, targets_);
      if (batch.canary != nullptr) TellBatch(batch, times.status());
      observer_.OnDeviceFault(backend_.device().id, times.status());
    });
    return Fault(times.status());
  }
  At(stages_, Stage::kCopyIn) = times->copy_in;
  At(stages_, Stage::kKernel) = times->kernel;
  At(stages_, Stage::kCopyOut) = times->copy_out;
  Guard(nullptr, [&] { Tell(batch); });
  return absl::OkStatus();
}

void Executor::Tell(const Batch& batch) {
  std::array<bool, kAllPolicies.size()> present{};
  calls_.clear();
  for (const TakenCall& taken : batch.calls) {
    present[static_cast<size_t>(taken.call->policy)] = true;
    calls_.push_back(taken.call.get());
    observer_.OnCallQueued(*targets_.front().arm, PhaseOf(shards_.front()->family),
                           absl::ToDoubleSeconds(batch.picked - taken.submitted));
  }
  observer_.OnCalls(calls_, batch.picked);
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Arm& ran = *targets_[i].arm;
    observer_.OnLaunch({.arm = &ran,
                        .shard = shards_[i].get(),
                        .step = step_,
                        .rows = batch.rows,
                        .close_reason = batch.close_reason,
                        .gather = At(stages_, Stage::kGather),
                        .copy_in = At(stages_, Stage::kCopyIn),
                        .kernel = At(stages_, Stage::kKernel),
                        .copy_out = At(stages_, Stage::kCopyOut)});
    // Policies of one batch share their classes, yet may have asked for different arms.
    const Arm* told = nullptr;
    for (Policy policy : kAllPolicies) {
      if (!present[static_cast<size_t>(policy)]) continue;
      const Arm* asked = AskedButDeclined(backend_.ladder(), QueryFor(*shards_[i], step_, policy),
                                          batch.levers->levers, batch.rows);
      if (asked == nullptr || asked == told) continue;
      observer_.OnDeclined(*asked, ran, Name(Decline::kCapability));
      told = asked;
    }
  }
  if (batch.canary != nullptr) TellBatch(batch, absl::OkStatus());
}

void Executor::TellBatch(const Batch& batch, const absl::Status& status) {
  ran_.clear();
  control_.clear();
  asked_.clear();
  const bool candidate = batch.candidate();
  const Policy policy = batch.calls.front().call->policy;
  for (size_t i = 0; status.ok() && i < targets_.size(); ++i) {
    const LadderQuery query = QueryFor(*shards_[i], step_, policy);
    ran_.push_back(targets_[i].arm);
    control_.push_back(targets_[i].arm);
    if (candidate) {
      const LeverSet& levers = batch.control->levers;
      const ClassSet classes = AllowedClasses(backend_.ladder(), query, levers);
      control_.back() = PickArm(backend_.ladder(), query, classes, levers, batch.rows);
    }
    asked_.push_back(AskedButDeclined(backend_.ladder(), query, batch.levers->levers, batch.rows));
  }
  clients_.clear();
  for (const TakenCall& taken : batch.calls) clients_.push_back(KeyHash(taken.call->client));
  observer_.OnBatch({.shards = shards_,
                     .ran = ran_,
                     .control = control_,
                     .asked = asked_,
                     .step = step_,
                     .output_type = output_type_,
                     .rows = batch.rows,
                     .clients = clients_,
                     .kernel = At(stages_, Stage::kKernel),
                     .picked = batch.picked,
                     .lever_epoch = batch.levers->epoch,
                     .canary = batch.canary == nullptr ? 0 : batch.canary->id,
                     .arms_since = batch.canary == nullptr ? 0 : batch.canary->arms_since,
                     .candidate = candidate,
                     .status = status});
}

void Executor::Reply(Batch& batch, const absl::Status& status) {
  absl::Status common = status;
  Provenance& provenance = result_.provenance;
  Guard(&common, [&] {
    provenance = Provenance{.arms = std::move(provenance.arms), .stages = stages_};
    provenance.arms.clear();
    if (!status.ok()) return;
    for (const LaunchTarget& target : targets_) provenance.arms.push_back(target.arm);
    provenance.batch_rows = batch.rows;
    provenance.lever_epoch = batch.levers->epoch;
    provenance.close_reason = batch.close_reason;
    result_.outputs.reserve(targets_.size());
  });
  size_t row = 0;
  for (TakenCall& taken : batch.calls) {
    const size_t rows = static_cast<size_t>(taken.call->rows);
    At(provenance.stages, Stage::kQueue) = absl::ToDoubleSeconds(batch.picked - taken.submitted);
    result_.status = common;
    result_.outputs.clear();
    for (size_t i = 0; common.ok() && i < targets_.size(); ++i) {
      const size_t row_bytes = output_bytes_[i] / static_cast<size_t>(batch.rows);
      result_.outputs.emplace_back(slot_->output(i) + row * row_bytes, rows * row_bytes);
    }
    row += rows;
    Guard(nullptr, [&] { taken.call->Complete(result_); });
    taken.call.reset();
  }
}

void Executor::Audit(const Batch& batch, const absl::Status& status) {
  Guard(nullptr, [&] {
    if (status.ok()) OfferToCheckers(batch);
  });
  shards_.clear();
}

void Executor::OfferToCheckers(const Batch& batch) {
  if (checkers_.shadow != nullptr) {
    for (size_t i = 0; i < targets_.size(); ++i) {
      checkers_.shadow->Offer(batch, step_, must_check_, shards_[i], targets_[i],
                              slot_->activations(), slot_->output(i), output_type_);
    }
  }
  if (checkers_.auditor != nullptr) {
    const double rate = batch.levers->levers.number(Lever::kAuditRate);
    for (size_t i = 0; i < targets_.size(); ++i) {
      checkers_.auditor->Offer(rate, shards_[i], *targets_[i].arm, batch.rows, slot_->activations(),
                               slot_->output(i), output_type_, batch.levers->epoch);
    }
  }
}

}  // namespace fulcrum
