// LeverService over an in-process channel with a real store.
// SPDX-License-Identifier: Apache-2.0
#include "service/lever_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "tests/service/support/lever_requests.h"
#include "tests/service/support/status_detail.h"

namespace fulcrum::service {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

LeverSnapshot AuditLatched() {
  LeverSnapshot snapshot;
  snapshot.latched[static_cast<size_t>(Lever::kAuditRate)] = true;
  snapshot.source[static_cast<size_t>(Lever::kAuditRate)] = LeverSource::kConfig;
  return snapshot;
}

class LeverServiceTest : public ::testing::Test {
 protected:
  LeverServiceTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::LeverService::NewStub(server_->InProcessChannel({}));
  }
  ~LeverServiceTest() override {
    service_.Shutdown();
    server_->Shutdown();
  }

  static v1::SetLeversRequest Change(const std::string& lever, const std::string& value,
                                     uint64_t based_on = 0) {
    v1::SetLeversRequest request = test::SetRequest(lever, value);
    request.set_based_on_epoch(based_on);
    return request;
  }
  grpc::Status Set(const v1::SetLeversRequest& request, v1::SetLeversResponse* response = nullptr) {
    grpc::ClientContext context;
    v1::SetLeversResponse ignored;
    return stub_->SetLevers(&context, request, response ? response : &ignored);
  }
  void MustSet(const std::string& lever, const std::string& value) {
    const grpc::Status status = Set(Change(lever, value));
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  // A stream that is known to be registered: the node's metadata came.
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::LeverEvent>> reader;
    std::vector<std::string> Read(int count) {
      std::vector<std::string> seen;
      v1::LeverEvent event;
      while (count-- > 0 && reader->Read(&event)) {
        seen.push_back(absl::StrCat(event.epoch(), " ", event.lever(), "=", event.to()));
      }
      return seen;
    }
  };
  std::unique_ptr<Watch> StartWatch(uint64_t since = 0) {
    auto watch = std::make_unique<Watch>();
    v1::WatchLeversRequest request;
    request.set_since_epoch(since);
    watch->reader = stub_->WatchLevers(&watch->context, request);
    watch->reader->WaitForInitialMetadata();
    return watch;
  }

  const Clock clock_{};
  const Authorizer authorizer_{TlsFiles{}};
  LeverStore store_{clock_, AuditLatched()};
  Observer observer_;
  CanaryControl canaries_{store_, observer_, clock_, nullptr};
  LeverServiceImpl service_{
      store_, canaries_, authorizer_, {.watcher_queue = 4, .max_watchers = 3}};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::LeverService::Stub> stub_;
};

TEST_F(LeverServiceTest, ListsTheWholeTable) {
  grpc::ClientContext context;
  v1::ListLeversResponse response;
  ASSERT_TRUE(stub_->ListLevers(&context, {}, &response).ok());
  EXPECT_EQ(response.epoch(), 1u);
  ASSERT_EQ(static_cast<size_t>(response.levers_size()), LeverTable().size());
  for (int i = 0; i < response.levers_size(); ++i) {
    const v1::Lever& lever = response.levers(i);
    EXPECT_EQ(lever.name(), LeverTable()[static_cast<size_t>(i)].name);
    EXPECT_EQ(lever.value(), lever.default_value());
    EXPECT_FALSE(lever.description().empty());
    EXPECT_EQ(lever.latched(), lever.name() == "audit_rate");
    EXPECT_EQ(lever.source(),
              lever.latched() ? v1::LEVER_SOURCE_CONFIG : v1::LEVER_SOURCE_BUILT_IN);
    EXPECT_EQ(lever.choices().empty(), lever.kind() == v1::LEVER_KIND_NUMBER);
  }
}

TEST_F(LeverServiceTest, SetsAllOrNothingAndCanOnlyValidate) {
  v1::SetLeversRequest request = Change("m16_tc", "attn_o");
  auto* second = request.add_assignments();
  second->set_name("max_batch_rows");
  second->set_value("16");
  request.set_reason("try");
  request.set_validate_only(true);
  v1::SetLeversResponse response;
  ASSERT_TRUE(Set(request, &response).ok());
  EXPECT_EQ(response.epoch(), 2u);
  EXPECT_EQ(response.levers(0).value(), "attn_o:one_pass");
  EXPECT_EQ(store_.Snapshot()->epoch, 1u);

  request.set_validate_only(false);
  ASSERT_TRUE(Set(request, &response).ok());
  EXPECT_EQ(store_.Snapshot()->epoch, 2u);
  EXPECT_EQ(response.levers(0).source(), v1::LEVER_SOURCE_RPC);
  ASSERT_EQ(store_.History().size(), 2u);
  EXPECT_EQ(store_.History()[0].reason, "try");
  EXPECT_FALSE(store_.History()[0].actor.empty());

  second->set_value("33");
  request.mutable_assignments(0)->set_value("off");
  EXPECT_FALSE(Set(request).ok());
  EXPECT_EQ(store_.Snapshot()->levers.Print(Lever::kM16Tc), "attn_o:one_pass");
}

TEST_F(LeverServiceTest, RefusalsNameTheField) {
  const auto field_of = [this](const v1::SetLeversRequest& request) {
    const grpc::Status status = Set(request);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    const auto bad = DetailOf<google::rpc::BadRequest>(status);
    return bad.field_violations_size() == 1 ? bad.field_violations(0).field() : std::string();
  };
  EXPECT_EQ(field_of({}), "assignments");
  EXPECT_EQ(field_of(Change("m17", "off")), "assignments[0].name");
  EXPECT_EQ(field_of(Change("m16_tc", "attn_o:m99")), "assignments[0].value");
  EXPECT_EQ(field_of(Change("max_batch_rows", "nan")), "assignments[0].value");
  v1::SetLeversRequest twice = Change("m16_tc", "off");
  *twice.add_assignments() = twice.assignments(0);
  EXPECT_EQ(field_of(twice), "assignments[1].name");
  v1::SetLeversRequest wordy = Change("m16_tc", "all");
  wordy.set_reason(std::string(2000, 'x'));
  EXPECT_EQ(field_of(wordy), "reason");

  const grpc::Status latched = Set(Change("audit_rate", "0"));
  EXPECT_EQ(latched.error_code(), StatusCode::FAILED_PRECONDITION);
  const auto failure = DetailOf<google::rpc::PreconditionFailure>(latched);
  ASSERT_EQ(failure.violations_size(), 1);
  EXPECT_EQ(failure.violations(0).type(), "LEVER_LATCHED");
  EXPECT_EQ(failure.violations(0).subject(), "audit_rate");
  EXPECT_EQ(store_.Snapshot()->epoch, 1u);
}

TEST_F(LeverServiceTest, OfTwoWritersOnOneEpochOneIsToldTheLiveEpoch) {
  for (int round = 0; round < 50; ++round) {
    const uint64_t base = store_.Snapshot()->epoch;
    grpc::Status results[2];
    std::vector<std::thread> writers;
    for (int i = 0; i < 2; ++i) {
      writers.emplace_back([&, i] {
        results[i] = Set(Change("coalesce_window_us", absl::StrCat(1 + round * 2 + i), base));
      });
    }
    for (std::thread& writer : writers) writer.join();
    ASSERT_NE(results[0].ok(), results[1].ok());
    const grpc::Status& lost = results[results[0].ok() ? 1 : 0];
    EXPECT_EQ(lost.error_code(), StatusCode::ABORTED);
    const auto info = DetailOf<google::rpc::ErrorInfo>(lost);
    EXPECT_EQ(info.reason(), "LEVER_EPOCH_STALE");
    EXPECT_EQ(info.domain(), "fulcrum");
    EXPECT_EQ(info.metadata().at("live_epoch"), absl::StrCat(base + 1));
    ASSERT_EQ(store_.Snapshot()->epoch, base + 1);
  }
}

TEST_F(LeverServiceTest, WatchersSeeEveryChangeInOrder) {
  const auto watch = StartWatch();
  MustSet("max_batch_rows", "16");
  MustSet("m16_tc", "all");
  MustSet("max_batch_rows", "16");  // no change, no event
  MustSet("m16_tc", "off");
  EXPECT_THAT(watch->Read(3), ::testing::ElementsAre("2 max_batch_rows=16", "3 m16_tc=all:one_pass",
                                                     "4 m16_tc=off"));
}

TEST_F(LeverServiceTest, AWatchBeginsWhereItIsAsked) {
  MustSet("max_batch_rows", "16");
  MustSet("max_batch_rows", "15");
  MustSet("max_batch_rows", "14");
  const auto past = StartWatch(2), now = StartWatch();
  MustSet("max_batch_rows", "13");
  EXPECT_THAT(past->Read(3), ::testing::ElementsAre("3 max_batch_rows=15", "4 max_batch_rows=14",
                                                    "5 max_batch_rows=13"));
  EXPECT_THAT(now->Read(1), ::testing::ElementsAre("5 max_batch_rows=13"));

  const auto future = StartWatch(99);
  EXPECT_TRUE(future->Read(1).empty());
  EXPECT_EQ(future->reader->Finish().error_code(), StatusCode::OUT_OF_RANGE);
}

TEST_F(LeverServiceTest, ForgottenChangesAreNotPassedOver) {
  for (size_t i = 0; i <= LeverStore::kHistory; ++i) {
    ASSERT_TRUE(store_.Set({{"coalesce_window_us", absl::StrCat(i + 1)}}, {}).ok());
  }
  const auto watch = StartWatch(1);
  EXPECT_TRUE(watch->Read(1).empty());
  EXPECT_EQ(watch->reader->Finish().error_code(), StatusCode::OUT_OF_RANGE);
  // What is still kept is more than a live watcher's queue may hold, and all of it comes.
  const auto kept = StartWatch(store_.History().front().epoch);
  EXPECT_EQ(kept->Read(LeverStore::kHistory - 1).size(), LeverStore::kHistory - 1);
}

TEST_F(LeverServiceTest, EventsBetweenListAndWatchAreNeitherLostNorTwice) {
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int i = 1; !stop; ++i) {
      EXPECT_TRUE(store_.Set({{"coalesce_window_us", absl::StrCat(i % 1000)}}, {}).ok());
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 20; ++round) {
    const uint64_t since = store_.Snapshot()->epoch;
    const auto watch = StartWatch(since);
    v1::LeverEvent event;
    uint64_t expected = since;
    // Until cut off for being slow, which the writer may bring about at any time.
    for (int i = 0; i < 20 && watch->reader->Read(&event); ++i) {
      EXPECT_EQ(event.epoch(), ++expected);
    }
    watch->context.TryCancel();
    watch->reader->Finish();
  }
  stop = true;
  writer.join();
}

TEST_F(LeverServiceTest, ASlowWatcherIsCutOffAndHoldsNobodyUp) {
  const auto slow = StartWatch();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(store_.Set({{"coalesce_window_us", absl::StrCat(i + 1)}}, {}).ok());
  }
  const size_t read = slow->Read(1000).size();
  EXPECT_LT(read, 1000u);
  const grpc::Status end = slow->reader->Finish();
  EXPECT_EQ(end.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(end.error_message(), HasSubstr("watch again"));
}

TEST_F(LeverServiceTest, WatchersAreBoundedAndLeaveTheirPlace) {
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 3; ++i) watches.push_back(StartWatch());
  const auto refused = StartWatch();
  EXPECT_EQ(refused->reader->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  watches[0]->context.TryCancel();
  EXPECT_EQ(watches[0]->reader->Finish().error_code(), StatusCode::CANCELLED);
  // The node learns of it a moment later; until then the place is taken.
  bool placed = false;
  while (!placed) {
    const auto next = StartWatch();
    MustSet("coalesce_window_us", absl::StrCat(store_.Snapshot()->epoch));
    placed = next->Read(1).size() == 1;
  }
}

TEST_F(LeverServiceTest, ShutdownEndsWatchesAsUnavailable) {
  const auto watch = StartWatch();
  service_.Shutdown();
  EXPECT_TRUE(watch->Read(1).empty());
  EXPECT_EQ(watch->reader->Finish().error_code(), StatusCode::UNAVAILABLE);
  const auto late = StartWatch();
  EXPECT_EQ(late->reader->Finish().error_code(), StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace fulcrum::service
