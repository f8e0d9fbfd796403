// A node in this process with one fp8 shard, and callers of one row that have no wire.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/call.h"
#include "scheduler/scheduler.h"
#include "scheduler/shard_store.h"
#include "service/server.h"

namespace fulcrum::service {

inline constexpr char kBenchShard[] = "models/bench/shards/gate_up";

struct BenchNode {
  std::string backend = "auto";
  int64_t n = 17408, k = 5120;
  int slots = 0;            // launch slots; 0: the backend's preference
  std::string m16_tc = "";  // value of the lever; empty: as the node comes
};
// NxK as an option's value; false unless both are positive numbers.
bool ParseShape(const std::string& text, BenchNode* options);
absl::StatusOr<std::unique_ptr<Server>> StartBenchNode(const BenchNode& options);

// What became of calls that ended within a stretch of time.
struct CallsRecorded {
  struct Call {
    absl::Time begin, end;
    float queued_seconds = 0;  // from Submit to the pick of its batch
    uint64_t epoch = 0;        // of the levers that it ran under
  };
  double seconds = 0;
  std::vector<Call> calls;
  int64_t batch_rows = 0;        // of each call's batch, added up
  double launches = 0;           // each call's share of its own
  StageSeconds all_stages = {};  // likewise its share of each stage, but for the queue its own time
  absl::Status status;           // of a call that failed

  double CallsPerSecond() const { return static_cast<double>(calls.size()) / seconds; }
  double all(Stage stage) const { return all_stages[static_cast<size_t>(stage)]; }
  // Mean of a launch, of a call for the queue.
  double MeanUs(Stage stage) const {
    return 1e6 * all(stage) /
           (stage == Stage::kQueue ? static_cast<double>(calls.size()) : launches);
  }
  std::vector<float> LatenciesUs() const;  // ascending
};

// So many callers, each with one call under way at any time, from construction to destruction. A
// thread serves several and looks when their calls have ended, as an engine's loop would, so that
// no slot's thread does a caller's work. A lone caller waits for its call, and may run it itself.
class InProcessLoad {
 public:
  InProcessLoad(Scheduler& scheduler, const std::shared_ptr<const Shard>& shard, int callers);
  ~InProcessLoad();

  // Blocks for so long.
  CallsRecorded Record(double seconds);

 private:
  class Caller;
  // Of one thread; `sums` is this class's while no window is open that the thread has seen.
  struct Part {
    std::vector<std::unique_ptr<Caller>> callers;
    std::atomic<int> seen{0};
    CallsRecorded sums;
    std::thread thread;
  };
  void Loop(Part& part);

  std::atomic<bool> stop_{false};
  std::atomic<int> window_{0};  // odd: open
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace fulcrum::service
