// A scheduler over one fake device, as most scheduler tests want it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "scheduler/lever_store.h"
#include "scheduler/scheduler.h"
#include "tests/support/fake_backend.h"
#include "tests/support/fake_clock.h"
#include "tests/support/recording_observer.h"
#include "tests/support/test_call.h"

namespace fulcrum::test {

class NodeTest : public ::testing::Test {
 protected:
  void Start(SchedulerOptions options = {}) {
    scheduler_ = std::make_unique<Scheduler>(std::vector<Backend*>{&backend_}, levers_, observer_,
                                             Checkers{}, clock_, options);
  }
  ~NodeTest() override {
    backend_.Release();
    scheduler_.reset();
  }

  std::shared_ptr<TestCall> Call(int rows, float value = 1, std::string client = "client") {
    auto call = std::make_shared<TestCall>(std::vector{shard_}, rows, value);
    call->client = std::move(client);
    call->id = std::to_string(++ids_);
    return call;
  }
  std::shared_ptr<TestCall> Submitted(std::shared_ptr<TestCall> call) {
    const absl::Status status = Submit(*scheduler_, call);
    EXPECT_TRUE(status.ok()) << status;
    return call;
  }
  std::shared_ptr<TestCall> Submitted(int rows, float value = 1, std::string client = "client") {
    return Submitted(Call(rows, value, std::move(client)));
  }
  // Keeps the device's only slot in a launch; later calls wait.
  std::shared_ptr<TestCall> Occupy() {
    backend_.Hold();
    auto call = Submitted(1, 1, "occupier");
    backend_.AwaitLaunches(1);
    return call;
  }
  void SetLever(std::string lever, std::string value) {
    const auto set = levers_.Set({{std::move(lever), std::move(value)}}, {});
    ASSERT_TRUE(set.ok()) << set.status();
  }

  FakeClock clock_;
  FakeBackend backend_;
  LeverStore levers_{clock_};
  RecordingObserver observer_;
  std::shared_ptr<const Shard> shard_ = MakeShard(backend_, "models/m/shards/s", 5);
  int ids_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace fulcrum::test
