// See in_process.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/bench/in_process.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/weights/synthetic.h"
#include "scheduler/call.h"
#include "service/config.h"

namespace fulcrum::service {
namespace {

constexpr int kCallersAThread = 8;
// On a machine with fewer, one thread looks after all callers: those that look would take the cores
// from those that compute.
constexpr unsigned kCoresForManyThreads = 8;

}  // namespace

bool ParseShape(const std::string& text, BenchNode* options) {
  const std::vector<std::string> sizes = absl::StrSplit(text, 'x');
  return sizes.size() == 2 && absl::SimpleAtoi(sizes[0], &options->n) &&
         absl::SimpleAtoi(sizes[1], &options->k) && options->n > 0 && options->k > 0;
}

absl::StatusOr<std::unique_ptr<Server>> StartBenchNode(const BenchNode& options) {
  Config config;
  config.listen = "127.0.0.1:0";
  config.metrics_listen = "off";
  config.backend = options.backend;
  config.log_level = "warn";
  config.limits.slots_per_device = options.slots;
  if (!options.m16_tc.empty()) config.levers["m16_tc"] = options.m16_tc;
  auto server = Server::Start(config, {});
  if (!server.ok()) return server.status();
  if (absl::Status s = (*server)->WaitLoaded(); !s.ok()) return s;
  auto source = SyntheticWeight({.name = "gate_up", .n = options.n, .k = options.k}, 1);
  if (!source.ok()) return source.status();
  LoadRequest load;
  load.name = kBenchShard;
  load.family = Family::kFfnGateUp;
  load.source = *std::move(source);
  if (auto shard = (*server)->shards().Load(load); !shard.ok()) return shard.status();
  return server;
}

std::vector<float> CallsRecorded::LatenciesUs() const {
  std::vector<float> out;
  for (const Call& call : calls) {
    out.push_back(static_cast<float>(absl::ToDoubleMicroseconds(call.end - call.begin)));
  }
  std::sort(out.begin(), out.end());
  return out;
}

class InProcessLoad::Caller {
 public:
  Caller(Scheduler& scheduler, std::shared_ptr<const Shard> shard, OnIdle on_idle)
      : scheduler_(scheduler),
        shard_(std::move(shard)),
        on_idle_(on_idle),
        row_(static_cast<size_t>(shard_->k()), uint16_t{0x3c00}) {}

  void Start() {
    running_.store(true, std::memory_order_relaxed);
    seen_.begin = absl::Now();
    std::shared_ptr<Call> call = std::make_shared<OneRow>(*this);
    if (const absl::Status s = scheduler_.Submit(call, on_idle_); !s.ok()) {
      call->Complete({s, {}, {}});
    }
  }
  bool running() const { return running_.load(std::memory_order_acquire); }
  // Of the call that has ended.
  void AddTo(CallsRecorded& sums) const {
    if (!status_.ok()) {
      sums.status = status_;
      return;
    }
    sums.batch_rows += batch_rows_;
    sums.launches += 1.0 / batch_rows_;
    for (const Stage stage : kAllStages) {
      const auto i = static_cast<size_t>(stage);
      sums.all_stages[i] += stages_[i] / (stage == Stage::kQueue ? 1 : batch_rows_);
    }
    sums.calls.push_back(seen_);
  }

 private:
  class OneRow : public Call {
   public:
    explicit OneRow(Caller& caller) : caller_(caller) {
      rows = 1;
      client = "bench";
      payload_bytes = (caller.shard_->k() + caller.shard_->n()) * 2;
      arrived = caller.seen_.begin;
      shards.push_back(caller.shard_);
    }
    void Gather(uint16_t* out) override {
      std::memcpy(out, caller_.row_.data(), caller_.row_.size() * 2);
    }
    void Complete(const CallResult& result) override {
      const Provenance& of = result.provenance;
      caller_.status_ = result.status;
      caller_.batch_rows_ = std::max(of.batch_rows, 1);
      caller_.stages_ = of.stages;
      caller_.seen_.queued_seconds =
          static_cast<float>(of.stages[static_cast<size_t>(Stage::kQueue)]);
      caller_.seen_.epoch = of.lever_epoch;
      caller_.seen_.end = absl::Now();
      caller_.running_.store(false, std::memory_order_release);
    }

   private:
    Caller& caller_;
  };

  Scheduler& scheduler_;
  const std::shared_ptr<const Shard> shard_;
  const OnIdle on_idle_;
  const std::vector<uint16_t> row_;
  CallsRecorded::Call seen_;
  absl::Status status_;
  int batch_rows_ = 1;
  StageSeconds stages_ = {};
  std::atomic<bool> running_{false};
};

InProcessLoad::InProcessLoad(Scheduler& scheduler, const std::shared_ptr<const Shard>& shard,
                             int callers) {
  const bool few_cores = std::thread::hardware_concurrency() < kCoresForManyThreads;
  const int threads = few_cores ? 1 : (callers + kCallersAThread - 1) / kCallersAThread;
  for (int t = 0; t < threads; ++t) parts_.push_back(std::make_unique<Part>());
  for (int i = 0; i < callers; ++i) {
    parts_[static_cast<size_t>(i % threads)]->callers.push_back(std::make_unique<Caller>(
        scheduler, shard, callers == 1 ? OnIdle::kRunHere : OnIdle::kHandOver));
  }
  for (auto& part : parts_) part->thread = std::thread([this, &part] { Loop(*part); });
}

InProcessLoad::~InProcessLoad() {
  stop_ = true;
  for (auto& part : parts_) part->thread.join();
}

void InProcessLoad::Loop(Part& part) {
  for (auto& caller : part.callers) caller->Start();
  for (size_t live = part.callers.size(); live > 0;) {
    const int window = window_.load(std::memory_order_acquire);
    if (window != part.seen.load(std::memory_order_relaxed)) {
      part.seen.store(window, std::memory_order_release);
    }
    bool idle = true;
    for (auto& caller : part.callers) {
      if (caller == nullptr || caller->running()) continue;
      idle = false;
      if (window % 2 == 1) caller->AddTo(part.sums);
      if (stop_) {
        caller = nullptr;
        --live;
      } else {
        caller->Start();
      }
    }
    if (idle) std::this_thread::yield();
  }
}

CallsRecorded InProcessLoad::Record(double seconds) {
  for (auto& part : parts_) part->sums = CallsRecorded();
  window_.fetch_add(1, std::memory_order_release);
  const absl::Time begin = absl::Now();
  absl::SleepFor(absl::Seconds(seconds));
  CallsRecorded all;
  all.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  const int closed = window_.fetch_add(1, std::memory_order_release) + 1;
  for (auto& part : parts_) {
    while (part->seen.load(std::memory_order_acquire) != closed) std::this_thread::yield();
    const CallsRecorded& sums = part->sums;
    all.calls.insert(all.calls.end(), sums.calls.begin(), sums.calls.end());
    all.batch_rows += sums.batch_rows;
    all.launches += sums.launches;
    for (size_t i = 0; i < all.all_stages.size(); ++i) all.all_stages[i] += sums.all_stages[i];
    all.status.Update(sums.status);
  }
  return all;
}

}  // namespace fulcrum::service
