// fulcrum levers watch over the ends of what it watches: connections that break, nodes that
// restart, canaries that are over.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <streambuf>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "tests/client/support/command_node.h"
#include "tests/client/support/small_node.h"
#include "tests/support/weight_files.h"

namespace fulcrum::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::LeverEvent Event(uint64_t epoch, const std::string& lever, const std::string& to) {
  v1::LeverEvent event;
  event.set_epoch(epoch);
  event.set_lever(lever);
  event.set_from("off");
  event.set_to(to);
  event.set_actor("me");
  event.set_cause("set");
  return event;
}
v1::LeverEvent End(uint64_t epoch, const std::string& cause, const std::string& actor) {
  v1::LeverEvent event = Event(epoch, "m16_tc", "off");
  event.set_cause(cause);
  event.set_canary("canaries/12");
  event.set_actor(actor);
  event.set_reason("one pass");
  event.set_evidence("kernel p50 too slow");
  return event;
}
size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class LeversWatchTest : public CommandOnNode {};

TEST_F(LeversWatchTest, GoesOnWhereAConnectionBrokeAndSaysSo) {
  std::vector<uint64_t> since;
  node_.watch_levers = [&](const v1::WatchLeversRequest& request,
                           grpc::ServerWriter<v1::LeverEvent>* writer) {
    since.push_back(request.since_epoch());
    writer->Write(Event(10, "m16_tc", "all"));
    if (since.size() == 1)
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the node is stopping");
    writer->Write(Event(10, "max_batch_rows", "8"));
    writer->Write(Event(11, "max_batch_rows", "9"));
    return grpc::Status::OK;
  };
  node_.levers.set_epoch(11);
  const AppRun run = Run({"levers", "watch", "--since-epoch", "9", "--count", "3"});
  EXPECT_EQ(run.exit, 0) << run.err;
  // The step in whose middle it broke is asked for again, and nothing of it is shown twice.
  EXPECT_EQ(since, (std::vector<uint64_t>{9, 9}));
  EXPECT_EQ(Count(run.out, "epoch 10"), 2u) << run.out;
  EXPECT_EQ(Count(run.out, "m16_tc"), 1u) << run.out;
  EXPECT_EQ(Count(run.out, "epoch 11"), 1u) << run.out;
  EXPECT_THAT(run.err, AllOf(HasSubstr("connection lost (UNAVAILABLE: the node is stopping)"),
                             HasSubstr("connected again, lever epoch 11 is live")));
}

TEST_F(LeversWatchTest, WhatTheNodeRefusesIsAnErrorAsBefore) {
  node_.watch_levers = [](const v1::WatchLeversRequest&, grpc::ServerWriter<v1::LeverEvent>*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "256 watchers are connected");
  };
  const AppRun run = Run({"levers", "watch"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("256 watchers"), Not(HasSubstr("connection lost"))));
  EXPECT_EQ(RunFulcrum({"--target", "127.0.0.1:1", "levers", "watch"}).exit, 1);
}

TEST_F(LeversWatchTest, TheTimeoutBoundsTheWaitForANodeToo) {
  node_.watch_levers = [](const v1::WatchLeversRequest&, grpc::ServerWriter<v1::LeverEvent>*) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the node is stopping");
  };
  const AppRun run = Run({"--timeout", "0.3", "levers", "watch"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("connection lost"), Not(HasSubstr("connected again"))));
}

TEST_F(LeversWatchTest, OneLineSaysThatACanaryEndedAndWhy) {
  for (const auto& [cause, actor, line] :
       {std::tuple("revert", "node", "canaries/12 reverted by node: kernel p50 too slow\n"),
        std::tuple("promote", "node", "canaries/12 promoted by node: kernel p50 too slow\n"),
        std::tuple("abort", "me", "canaries/12 aborted by me: one pass; kernel p50 too slow\n")}) {
    v1::LeverEvent other = End(14, cause, actor);
    other.set_lever("max_batch_rows");
    node_.lever_events = {End(14, cause, actor), other};
    const AppRun run = Run({"levers", "watch", "--count", "2"});
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_EQ(Count(run.out, line), 1u) << run.out;  // one of two levers
    EXPECT_EQ(Count(run.out, "\n"), 3u) << run.out;
    // Programs have it in the event.
    EXPECT_EQ(Count(Run({"levers", "watch", "--count", "2", "--json"}).out, "\n"), 2u);
  }
  // One that was over before is said first.
  v1::Canary* const canary = node_.levers.mutable_canary();
  canary->set_name("canaries/5");
  canary->set_state(v1::CANARY_STATE_ABORTED);
  canary->set_evidence("enough");
  const AppRun run = Run({"levers", "watch", "--count", "1"});
  EXPECT_TRUE(run.out.starts_with("canaries/5 aborted: enough\n")) << run.out;
}

// A node that ends and starts again at the same address.
class RestartingNode {
 public:
  explicit RestartingNode(bool journal) : journal_(journal) { Start(); }
  void Start() {
    node_ = std::make_unique<test::SmallNode>([this](service::Config& config) {
      config.listen = Target();
      if (journal_) config.lever_journal = dir_.At("levers.journal");
    });
  }
  void Stop() { node_.reset(); }
  std::string Target() const { return "unix:" + dir_.At("node"); }

 private:
  const test::TempDir dir_;
  const bool journal_;
  std::unique_ptr<test::SmallNode> node_;
};

// What a command writes, readable while it runs.
class LiveText final : public std::streambuf {
 public:
  std::string text() const {
    absl::MutexLock lock(&mu_);
    return text_;
  }
  void Await(const std::string& part) const {
    const absl::Time limit = absl::Now() + absl::Minutes(1);
    while (text().find(part) == std::string::npos && absl::Now() < limit) std::this_thread::yield();
    EXPECT_THAT(text(), HasSubstr(part));
  }

 private:
  int_type overflow(int_type c) override {
    absl::MutexLock lock(&mu_);
    text_ += static_cast<char>(c);
    return c;
  }
  mutable absl::Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

// A command on a thread of its own.
class Watching {
 public:
  explicit Watching(std::vector<std::string> arguments)
      : thread_([this, arguments = std::move(arguments)] {
          std::ostream out(&out_), err(&err_);
          exit_ = RunApp(arguments, out, err);
        }) {}
  ~Watching() { (void)Join(); }
  int Join() {
    if (thread_.joinable()) thread_.join();
    return exit_;
  }
  const LiveText& out() const { return out_; }
  const LiveText& err() const { return err_; }

 private:
  LiveText out_, err_;
  int exit_ = -1;
  std::thread thread_;
};

v1::StartCanaryRequest HalfOnM16() {
  v1::StartCanaryRequest request;
  auto* const assignment = request.add_assignments();
  assignment->set_name("m16_tc");
  assignment->set_value("all");
  request.set_share(0.5);
  return request;
}

TEST(LeversWatch, ANewNodesCanaryOfTheSameNameIsAnother) {
  RestartingNode node(/*journal=*/false);
  auto client = *client::Client::Connect(node.Target());
  const auto first = client->StartCanary(HalfOnM16());
  ASSERT_TRUE(first.ok()) << first.status();
  Watching tables({"--target", node.Target(), "levers", "watch", "--every", "0.01"});
  tables.out().Await(first->name() + " running");
  client.reset();
  node.Stop();
  tables.err().Await("connection lost");
  node.Start();
  client = *client::Client::Connect(node.Target());
  const auto second = client->StartCanary(HalfOnM16());
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_EQ(second->name(), first->name());
  EXPECT_EQ(tables.Join(), 1) << tables.err().text();
  EXPECT_THAT(tables.err().text(), HasSubstr("how it ended is not known"));
}

TEST(LeversWatch, TablesSayWhoEndedTheCanaryAndWhy) {
  RestartingNode node(/*journal=*/false);
  const auto client = *client::Client::Connect(node.Target());
  const auto canary = client->StartCanary(HalfOnM16());
  ASSERT_TRUE(canary.ok()) << canary.status();
  Watching tables({"--target", node.Target(), "levers", "watch", "--every", "0.01"});
  tables.out().Await(canary->name() + " running");
  v1::AbortCanaryRequest abort;
  abort.set_name(canary->name());
  abort.set_reason("enough of it");
  const auto aborted = client->AbortCanary(abort);
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  EXPECT_EQ(tables.Join(), 0) << tables.err().text();
  const auto end = testing::ContainsRegex(canary->name() + " aborted by [^\n]+: enough of it");
  EXPECT_THAT(tables.out().text(), end);
  // And to who looks later.
  Watching later(
      {"--target", node.Target(), "levers", "watch", "--since-epoch", "1", "--count", "1"});
  EXPECT_EQ(later.Join(), 0);
  EXPECT_THAT(later.out().text(), end);
}

TEST(LeversWatch, ARestartEndsTheCanaryAndNotTheWatch) {
  for (const bool journal : {true, false}) {
    RestartingNode node(journal);
    auto client = *client::Client::Connect(node.Target());
    const auto canary = client->StartCanary(HalfOnM16());
    ASSERT_TRUE(canary.ok()) << canary.status();
    Watching tables({"--target", node.Target(), "levers", "watch", "--every", "0.01"});
    Watching events({"--target", node.Target(), "levers", "watch", "--since-epoch",
                     std::to_string(canary->epoch()), "--count", journal ? "3" : "2"});
    tables.out().Await(canary->name() + " running");
    events.out().Await(absl::StrFormat("(canary_start, %s: its side is epoch %d, the rest %d, ",
                                       canary->name(), canary->epoch(), canary->epoch() + 1));
    client.reset();
    node.Stop();
    // A restart that is over sooner than the client's own retries is not even seen by the tables.
    for (const Watching* one : {&tables, &events}) one->err().Await("connection lost");
    node.Start();
    client = *client::Client::Connect(node.Target());
    v1::SetLeversRequest set;
    auto* const assignment = set.add_assignments();
    assignment->set_name("max_batch_rows");
    assignment->set_value("8");
    ASSERT_TRUE(client->SetLevers(set).ok());
    EXPECT_EQ(tables.Join(), journal ? 0 : 1) << tables.err().text();
    EXPECT_EQ(events.Join(), 0) << events.err().text();
    for (const Watching* one : {&tables, &events}) {
      EXPECT_THAT(one->err().text(), HasSubstr("connected again"));
    }
    EXPECT_THAT(events.out().text(), HasSubstr("max_batch_rows: 32 -> 8"));
    if (journal) {
      const std::string line =
          canary->name() + " reverted by node: the node ended while the canary ran\n";
      EXPECT_THAT(tables.out().text(), HasSubstr(line));
      EXPECT_THAT(events.out().text(), HasSubstr(line));
    } else {
      EXPECT_THAT(tables.err().text(), HasSubstr("keeps no journal"));
      EXPECT_THAT(events.err().text(), HasSubstr("epochs began anew"));
    }
  }
}

}  // namespace
}  // namespace fulcrum::cli
