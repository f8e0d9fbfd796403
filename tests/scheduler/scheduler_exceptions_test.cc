// A scheduler in which something throws: the batch or call at hand gets a status, everything else
// goes on, and what threw is told. Also with memory that runs out at each single allocation.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/failing_memory.h"
#include "tests/support/node_fixture.h"

namespace fulcrum {
namespace {

using test::FailingMemory;
using test::TestCall;
using ::testing::HasSubstr;

// Throws from what it is told, where a test says so.
class ThrowingObserver : public test::RecordingObserver {
 public:
  std::atomic<bool> launch{false}, queued{false}, reject{false}, queue{false}, fault{false};

  void OnLaunch(const LaunchEvent& e) override { Throw(launch), RecordingObserver::OnLaunch(e); }
  void OnCallQueued(const Arm& arm, Phase phase, double seconds) override {
    Throw(queued), RecordingObserver::OnCallQueued(arm, phase, seconds);
  }
  void OnReject(RejectReason reason) override {
    Throw(reject), RecordingObserver::OnReject(reason);
  }
  void OnQueue(int64_t rows, int64_t bytes) override {
    Throw(queue), RecordingObserver::OnQueue(rows, bytes);
  }
  void OnDeviceFault(std::string_view device, const absl::Status& status) override {
    Throw(fault), RecordingObserver::OnDeviceFault(device, status);
  }
  void OnException(Thrower thrower, const absl::Status&) override {
    absl::MutexLock lock(&mu_);
    ++thrown_[thrower];
  }
  void OnLoopEnded(std::string_view device) override {
    absl::MutexLock lock(&mu_);
    ended_.emplace_back(device);
  }
  int64_t thrown(Thrower thrower) const {
    absl::MutexLock lock(&mu_);
    const auto it = thrown_.find(thrower);
    return it == thrown_.end() ? 0 : it->second;
  }
  std::vector<std::string> ended() const {
    absl::MutexLock lock(&mu_);
    return ended_;
  }

 private:
  static void Throw(const std::atomic<bool>& armed) {
    if (armed) throw std::runtime_error("an observer's");
  }
  mutable absl::Mutex mu_;
  std::map<Thrower, int64_t> thrown_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> ended_ ABSL_GUARDED_BY(mu_);
};

// A clock on which a thread may not wait.
class ThrowingClock : public test::FakeClock {
 public:
  std::atomic<int> throws{0};  // waits that throw from now on
  void Wait(absl::Mutex& mu, absl::CondVar& cv, absl::Time until) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (throws_left() > 0) throw std::bad_alloc();
    FakeClock::Wait(mu, cv, until);
  }

 private:
  int throws_left() const { return const_cast<std::atomic<int>&>(throws).fetch_sub(1); }
};

// A device whose launches throw where a test says so.
class ThrowingBackend : public test::FakeBackend {
 public:
  std::atomic<bool> armed{false};
  absl::StatusOr<LaunchTimes> Run(LaunchSlot& slot, const Launch& launch) override {
    if (armed) throw std::runtime_error("a driver's");
    return FakeBackend::Run(slot, launch);
  }
};

// A call that takes no memory once it is submitted: what runs out is the scheduler's.
class FrugalCall : public TestCall {
 public:
  using TestCall::TestCall;
  void Complete(const CallResult& r) override {
    ++completions;
    status = r.status;
    done.Notify();
  }
};

class ThrowTest : public ::testing::Test {
 protected:
  void Start(SchedulerOptions options = {}) {
    scheduler_ = std::make_unique<Scheduler>(std::vector<Backend*>{&backend_}, levers_, observer_,
                                             Checkers{}, clock_, options);
  }
  ~ThrowTest() override {
    clock_.throws = 0;
    backend_.Release();
    scheduler_.reset();
  }
  std::shared_ptr<TestCall> Call(int rows = 1) {
    return std::make_shared<TestCall>(std::vector{shard_}, rows);
  }
  std::shared_ptr<TestCall> Submitted(std::shared_ptr<TestCall> call) {
    const absl::Status status = test::Submit(*scheduler_, call);
    EXPECT_TRUE(status.ok()) << status;
    return call;
  }
  // The device's only slot, held: what comes waits.
  std::shared_ptr<TestCall> Occupy() {
    backend_.Hold();
    const size_t before = backend_.ran().size();
    auto call = Submitted(Call());
    backend_.AwaitLaunches(before + 1);
    return call;
  }
  void ExpectServes() {
    const auto call = Submitted(Call());
    EXPECT_TRUE(call->Await().ok()) << call->status;
    EXPECT_EQ(call->Output(), 6);
  }
  void ExpectNothingLeft() {
    scheduler_->Drain(absl::InfiniteDuration());
    EXPECT_EQ(scheduler_->inflight_calls(), 0);
    EXPECT_EQ(scheduler_->queued_rows(), 0);
    EXPECT_EQ(scheduler_->Liveness().front().waiting, 0);
    EXPECT_EQ(scheduler_->Liveness().front().launching, 0);
  }

  ThrowingClock clock_;
  ThrowingBackend backend_;
  LeverStore levers_{clock_};
  ThrowingObserver observer_;
  std::shared_ptr<const Shard> shard_ = test::MakeShard(backend_, "models/m/shards/s", 5);
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(ThrowTest, AGatherThatThrowsFailsItsBatchAndTheNextRuns) {
  Start();
  const auto occupier = Occupy();
  const auto throws = Call(), shares = Call();
  throws->on_gather = [] { throw std::bad_alloc(); };
  Submitted(throws), Submitted(shares);
  backend_.Release();
  EXPECT_TRUE(occupier->Await().ok());
  for (const auto& call : {throws, shares}) {
    EXPECT_TRUE(absl::IsResourceExhausted(call->Await())) << call->status;
    EXPECT_EQ(call->completions, 1);
  }
  ExpectServes();
  EXPECT_EQ(observer_.thrown(Thrower::kBatch), 1);
  ExpectNothingLeft();
}

TEST_F(ThrowTest, ALaunchThatThrowsIsAFaultThatNamesWhatItThrew) {
  Start();
  backend_.armed = true;
  const auto call = Submitted(Call());
  EXPECT_TRUE(absl::IsInternal(call->Await())) << call->status;
  EXPECT_THAT(std::string(call->status.message()), HasSubstr("a driver's"));
  EXPECT_THAT(std::string(call->status.message()), HasSubstr("fake:0"));
  backend_.armed = false;
  ExpectServes();
  EXPECT_EQ(observer_.totals().faults, 1);
  EXPECT_EQ(observer_.thrown(Thrower::kBatch), 1);
}

TEST_F(ThrowTest, ACompletionThatThrowsKeepsNoOtherFromItsReply) {
  Start();
  const auto occupier = Occupy();
  std::vector<std::shared_ptr<TestCall>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(Call());
    if (i % 2 == 0) calls.back()->on_complete = [] { throw std::runtime_error("a reply's"); };
    Submitted(calls.back());
  }
  backend_.Release();
  EXPECT_TRUE(calls[1]->Await().ok());
  EXPECT_TRUE(calls[3]->Await().ok());
  ExpectServes();
  EXPECT_EQ(observer_.thrown(Thrower::kBatch), 2);
  ExpectNothingLeft();
}

TEST_F(ThrowTest, ARefusalWhoseCompletionThrowsEndsNoThread) {
  Start();
  const auto occupier = Occupy();
  const auto call = Call();
  call->deadline = clock_.Now() + absl::Seconds(1);
  call->on_complete = [] { throw std::runtime_error("a reply's"); };
  Submitted(call);
  const auto other = Call();
  other->deadline = clock_.Now() + absl::Seconds(2);
  Submitted(other);
  clock_.Advance(absl::Seconds(1));
  clock_.AwaitSleeper(other->deadline);
  EXPECT_EQ(call->completions, 1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(other->Await()));
  backend_.Release();
  ExpectServes();
  ExpectNothingLeft();
}

TEST_F(ThrowTest, AnObserverThatThrowsChangesNothingForCallers) {
  Start({.max_queue_rows = 8});
  observer_.launch = observer_.queued = observer_.queue = observer_.reject = observer_.fault = true;
  for (int i = 0; i < 3; ++i) ExpectServes();
  const auto occupier = Occupy();
  const auto waiting = Submitted(Call(8));
  const auto refused = Call();
  EXPECT_TRUE(absl::IsResourceExhausted(test::Submit(*scheduler_, refused)));
  scheduler_->Cancel(waiting.get());
  EXPECT_TRUE(absl::IsCancelled(waiting->Await()));
  backend_.FailNext(absl::InternalError("no luck"), /*lost=*/false);
  backend_.Release();
  EXPECT_TRUE(absl::IsInternal(occupier->Await()));
  observer_.launch = observer_.queued = observer_.queue = observer_.reject = observer_.fault =
      false;
  ExpectServes();
  ExpectNothingLeft();
  EXPECT_EQ(observer_.totals().queue_rows, 0) << "the sums are told again";
  EXPECT_GE(observer_.thrown(Thrower::kObserver), 2);
}

TEST_F(ThrowTest, ALoopThatThrewOnceGoesOn) {
  Start();
  clock_.throws = 5;
  ExpectServes();
  ExpectServes();
  clock_.throws = 0;
  EXPECT_TRUE(observer_.ended().empty());
  EXPECT_EQ(scheduler_->Liveness().front().ended_loops, 0);
  EXPECT_GE(observer_.thrown(Thrower::kScheduler), 1);
}

TEST_F(ThrowTest, LoopsThatEndedAreToldAtOnceAndTakeNoCalls) {
  Start();
  ExpectServes();
  clock_.throws = 1 << 30;
  // Wakes the loops, which then find that they cannot wait.
  scheduler_->Pause();
  const auto call = Call();
  call->deadline = clock_.Now() + absl::Seconds(1);
  Submitted(call);
  while (scheduler_->Liveness().front().ended_loops < 3) std::this_thread::yield();
  EXPECT_EQ(scheduler_->Liveness().front().loops, 3);  // two slots' and the one that expires calls
  EXPECT_EQ(observer_.ended(), std::vector<std::string>(3, "fake:0"));
  const absl::Status refused = test::Submit(*scheduler_, Call());
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("fake:0"));
  clock_.throws = 0;
  scheduler_->Drain(absl::ZeroDuration());
  EXPECT_TRUE(absl::IsUnavailable(call->Await())) << call->status;
}

// Each allocation of Submit in turn: the call is refused with bad_alloc or taken, never half.
TEST_F(ThrowTest, ASubmitThatRunsOutOfMemoryAnywhereLeavesNothing) {
  bool failed = true;
  int64_t nth = 0;
  for (; failed; ++nth) {
    Start();
    const auto occupier = Occupy();
    const auto waiting = Submitted(Call());
    const auto call = Call();
    call->client = "a client whose name takes memory, and that has not been here before";
    std::shared_ptr<fulcrum::Call> given = call;
    absl::Status status;
    const absl::Status thrown = Caught([&] {
      const FailingMemory memory(nth);
      status = scheduler_->Submit(given);
    });
    failed = FailingMemory::Failed();
    ASSERT_EQ(given == nullptr, thrown.ok() && status.ok()) << nth;
    backend_.Release();
    EXPECT_TRUE(waiting->Await().ok());
    if (given == nullptr) {
      EXPECT_TRUE(call->Await().ok()) << nth;
    }
    given.reset();
    ExpectServes();
    ExpectNothingLeft();
    EXPECT_EQ(call.use_count(), 1) << nth;
    scheduler_.reset();
  }
  EXPECT_GT(nth, 5);
}

// Each allocation of the thread that takes, runs and answers a batch in turn, from the moment it
// gathers one on: that batch, and what it does until it gathers again.
TEST_F(ThrowTest, ASlotThatRunsOutOfMemoryAnywhereAnswersEveryCall) {
  constexpr int64_t kAllocations = 60;  // more than there are
  const int64_t before = FailingMemory::Failures();
  for (int64_t nth = 0; nth < kAllocations; ++nth) {
    Start();
    const auto occupier = Occupy();
    std::vector<std::shared_ptr<TestCall>> calls;
    for (int i = 0; i < 3; ++i) {
      calls.push_back(std::make_shared<FrugalCall>(std::vector{shard_}, 1));
      calls.back()->client = "client " + std::to_string(i);
    }
    calls[0]->on_gather = [nth] { FailingMemory::Arm(nth); };
    for (const auto& call : calls) Submitted(call);
    backend_.Release();
    for (const auto& call : calls) {
      const absl::Status& status = call->Await();
      EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << nth << ": " << status;
      EXPECT_EQ(call->completions, 1) << nth;
    }
    for (int i = 0; i < 4; ++i) {
      const auto call = std::make_shared<FrugalCall>(std::vector{shard_}, 1);
      Submitted(call);
      const absl::Status& status = call->Await();
      EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << nth << ": " << status;
    }
    ExpectNothingLeft();
    EXPECT_TRUE(observer_.ended().empty());
    scheduler_.reset();
  }
  EXPECT_GT(FailingMemory::Failures() - before, 5);
  EXPECT_LT(FailingMemory::Failures() - before, kAllocations) << "the last were not reached";
}

}  // namespace
}  // namespace fulcrum
