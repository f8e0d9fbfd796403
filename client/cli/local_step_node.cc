// The scheduler's half of a node, built for one caller. See local_step_node.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/local_step_node.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/cli/payload.h"
#include "client/cli/table.h"
#include "kernels/backend_factory.h"
#include "kernels/ladder/ladder.h"
#include "kernels/weights/synthetic.h"
#include "scheduler/ladder_query.h"
#include "scheduler/scheduler.h"

namespace fulcrum::cli {
namespace {

constexpr uint64_t kWeightSeed = 1;

// One use of a prepared call.
class LocalCall final : public Call {
 public:
  LocalCall(std::vector<std::shared_ptr<const Shard>> of, const StepInputs& inputs,
            std::shared_ptr<const std::string> activations)
      : activations_(std::move(activations)) {
    shards = std::move(of);
    rows = inputs.rows;
    policy = inputs.policy;
    client = "step";
    arrived = absl::Now();
    payload_bytes = static_cast<int64_t>(activations_->size());
    for (const auto& shard : shards) payload_bytes += rows * shard->n() * 2;
  }
  void Gather(uint16_t* out) override {
    std::memcpy(out, activations_->data(), activations_->size());
  }
  void Complete(const CallResult& result) override {
    status_ = result.status;
    if (status_.ok()) {
      const Provenance& of = result.provenance;
      reply_ = {.lever_epoch = of.lever_epoch,
                .batch_rows = of.batch_rows,
                .kernel = of.stages[static_cast<size_t>(Stage::kKernel)]};
      for (const Arm* arm : of.arms) reply_.arms.emplace_back(arm->name);
    }
    done_.Notify();
  }
  absl::StatusOr<StepReply> Await() {
    done_.WaitForNotification();
    if (!status_.ok()) return status_;
    return std::move(reply_);
  }

 private:
  const std::shared_ptr<const std::string> activations_;
  absl::Notification done_;
  absl::Status status_;
  StepReply reply_;
};

class LocalStepNode final : public StepNode {
 public:
  LocalStepNode(std::unique_ptr<Backend> backend, std::vector<NamedWeight> weights,
                std::function<void(const std::string&)> progress)
      : backend_(std::move(backend)),
        progress_(std::move(progress)),
        store_({backend_.get()}, nullptr),
        levers_(clock_),
        scheduler_({backend_.get()}, levers_, observer_, {}, clock_, {}) {
    for (NamedWeight& weight : weights) {
      order_.push_back(weight.shard);
      weights_.emplace(weight.shard, std::move(weight));
    }
  }

  std::string Description() const override {
    const DeviceInfo& device = backend_->device();
    return absl::StrCat("in process on ", device.id, " (", device.description, ")");
  }

  absl::StatusOr<std::vector<StepWeight>> Weights() override {
    std::vector<StepWeight> out;
    for (const std::string& name : order_) {
      const NamedWeight& weight = weights_.at(name);
      const WeightSpec& spec = weight.source->spec();
      out.push_back({name, weight.family, spec.n, spec.k});
    }
    return out;
  }

  absl::Status Prepare(const std::vector<DecodeCall>& calls, const StepInputs& inputs) override {
    inputs_ = inputs;
    if (absl::Status s = Load(calls); !s.ok()) return s;
    calls_.clear();
    for (const DecodeCall& call : calls) {
      Prepared& prepared = calls_.emplace_back();
      for (const StepWeight& weight : call.weights) {
        auto shard = store_.Find(weight.name);
        if (!shard.ok()) return shard.status();
        prepared.shards.push_back(*std::move(shard));
      }
      auto& activations = activations_[call.k];
      if (activations == nullptr) {
        activations = std::make_shared<const std::string>(
            RandomActivations(inputs.seed, inputs.rows, call.k).bytes);
      }
      prepared.activations = activations;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepReply> Call(size_t index) override {
    const Prepared& prepared = calls_[index];
    const auto call = std::make_shared<LocalCall>(prepared.shards, inputs_, prepared.activations);
    std::shared_ptr<fulcrum::Call> submitted = call;
    if (absl::Status s = scheduler_.Submit(submitted, OnIdle::kRunHere); !s.ok()) return s;
    return call->Await();
  }

  absl::StatusOr<LiveLevers> Levers() override { return LiveOf(*levers_.Snapshot()); }

  absl::StatusOr<LiveLevers> SetLevers(const LeverValues& values, uint64_t based_on_epoch,
                                       const std::string& reason) override {
    std::vector<LeverChange> changes;
    for (const auto& [name, value] : values) changes.push_back({name, value});
    const auto set =
        levers_.Set(changes, {.based_on_epoch = based_on_epoch, .actor = "step", .reason = reason});
    if (!set.ok()) return set.status();
    return LiveOf(**set);
  }

  void EndBy(absl::Time) override {}  // no way to a node that could be lost

  absl::StatusOr<std::vector<std::string>> Declined(size_t index) override {
    const auto live = levers_.Snapshot();
    std::vector<std::string> out;
    for (const auto& shard : calls_[index].shards) {
      const Arm* const asked =
          AskedButDeclined(backend_->ladder(), QueryFor(*shard, Step::kDecode, inputs_.policy),
                           live->levers, inputs_.rows);
      out.emplace_back(asked == nullptr ? "" : asked->name);
    }
    return out;
  }

 private:
  static LiveLevers LiveOf(const LeverSnapshot& snapshot) {
    LiveLevers out{.epoch = snapshot.epoch};
    for (const LeverInfo& info : LeverTable()) {
      out.values[std::string(info.name)] = snapshot.levers.Print(info.lever);
    }
    return out;
  }
  struct Prepared {
    std::vector<std::shared_ptr<const Shard>> shards;
    std::shared_ptr<const std::string> activations;
  };

  // The weights of the calls that are not there yet, several at a time: making and hashing them is
  // the slow part. The largest first, so that none of them is begun last.
  absl::Status Load(const std::vector<DecodeCall>& calls) {
    std::vector<const NamedWeight*> missing;
    int64_t bytes = 0;
    for (const DecodeCall& call : calls) {
      for (const StepWeight& weight : call.weights) {
        if (store_.Find(weight.name).ok()) continue;
        missing.push_back(&weights_.at(weight.name));
        bytes += backend_->ResidentBytes(missing.back()->source->spec());
      }
    }
    if (missing.empty()) return absl::OkStatus();
    std::stable_sort(missing.begin(), missing.end(), [&](const auto* a, const auto* b) {
      return backend_->ResidentBytes(a->source->spec()) >
             backend_->ResidentBytes(b->source->spec());
    });
    if (progress_) {
      progress_(absl::StrFormat("loading %d weights, %s", missing.size(),
                                HumanBytes(static_cast<double>(bytes))));
    }
    std::atomic<size_t> next{0};
    absl::Mutex mu;
    absl::Status status;
    const auto load = [&] {
      for (size_t i = next++; i < missing.size(); i = next++) {
        LoadRequest request;
        request.name = missing[i]->shard;
        request.family = missing[i]->family;
        request.source = missing[i]->source;
        const auto shard = store_.Load(request);
        if (shard.ok()) continue;
        absl::MutexLock lock(&mu);
        status.Update(shard.status());
        next = missing.size();
      }
    };
    const size_t count = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, missing.size());
    std::vector<std::thread> threads;
    for (size_t i = 1; i < count; ++i) threads.emplace_back(load);
    load();
    for (std::thread& thread : threads) thread.join();
    return status;
  }

  const std::unique_ptr<Backend> backend_;
  const std::function<void(const std::string&)> progress_;
  const Clock clock_;
  Observer observer_;
  std::vector<std::string> order_;
  absl::flat_hash_map<std::string, NamedWeight> weights_;
  ShardStore store_;
  LeverStore levers_;
  Scheduler scheduler_;
  StepInputs inputs_;
  absl::flat_hash_map<int64_t, std::shared_ptr<const std::string>> activations_;  // by K
  std::vector<Prepared> calls_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StepNode>> MakeLocalStepNode(const LocalNodeOptions& options) {
  auto weights = SyntheticModel(options.model, kWeightSeed);
  if (!weights.ok()) return weights.status();
  auto backends = MakeBackends(options.backend, {.cpu_threads = options.threads});
  if (!backends.ok()) return backends.status();
  return std::make_unique<LocalStepNode>(std::move(backends->front()), *std::move(weights),
                                         options.progress);
}

}  // namespace fulcrum::cli
