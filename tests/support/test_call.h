// A Project call that remembers what became of it, and the one way tests submit it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/formats/bf16.h"
#include "scheduler/call.h"
#include "scheduler/scheduler.h"
#include "tests/support/event.h"

namespace fulcrum::test {

class TestCall : public Call {
 public:
  TestCall(std::vector<std::shared_ptr<const Shard>> on, int row_count, float row_value = 1)
      : value(row_value) {
    shards = std::move(on);
    rows = row_count;
    client = "client";
    output_type = DType::kF32;
    payload_bytes = 100 * row_count;
  }

  void Gather(uint16_t* out) override {
    ++gathers;
    if (on_gather) on_gather();
    const int64_t k = shards.front()->k();
    for (int64_t i = 0; i < rows * k; ++i) out[i] = F32ToBf16(value);
  }
  void Complete(const CallResult& r) override {
    if (++completions > 1) {
      ADD_FAILURE() << "completed twice: " << id;
      return;
    }
    status = r.status;
    provenance = r.provenance;
    for (const auto& bytes : r.outputs) outputs.emplace_back(bytes.begin(), bytes.end());
    if (on_complete) on_complete();
    done.Notify();
  }

  const absl::Status& Await() {
    done.WaitForNotification();
    return status;
  }
  // The value that every element of output `shard` has (F32), or NaN when they differ.
  float Output(size_t shard = 0) const {
    const std::vector<std::byte>& bytes = outputs[shard];
    float first = 0;
    std::memcpy(&first, bytes.data(), sizeof(first));
    for (size_t i = 0; i < bytes.size(); i += sizeof(first)) {
      if (std::memcmp(bytes.data(), bytes.data() + i, sizeof(first)) != 0) return NAN;
    }
    return first;
  }

  const float value;  // of every activation
  std::function<void()> on_gather, on_complete;
  std::atomic<int> gathers{0}, completions{0};
  Event done;
  absl::Status status;
  Provenance provenance;
  std::vector<std::vector<std::byte>> outputs;
};

inline double StageOf(const TestCall& call, Stage stage) {
  return call.provenance.stages[static_cast<size_t>(stage)];
}

// Submits and checks that the scheduler took the call iff it says so.
inline absl::Status Submit(Scheduler& scheduler, const std::shared_ptr<TestCall>& call) {
  std::shared_ptr<Call> given = call;
  const absl::Status status = scheduler.Submit(given);
  EXPECT_EQ(status.ok(), given == nullptr) << status;
  return status;
}

}  // namespace fulcrum::test
