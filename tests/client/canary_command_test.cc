// fulcrum levers: canaries from the command line, against a scripted node.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/client/support/command_node.h"

namespace fulcrum::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Canary Running() {
  v1::Canary canary;
  canary.set_name("canaries/12");
  canary.set_state(v1::CANARY_STATE_RUNNING);
  canary.set_share(0.05);
  canary.set_unit(v1::CANARY_UNIT_CLIENT);
  canary.set_epoch(12);
  canary.set_control_epoch(13);
  canary.set_evidence("all is well");
  auto* const control = canary.add_control();
  control->set_name("m16_tc");
  control->set_value("off");
  auto* const candidate = canary.add_candidate();
  candidate->set_name("m16_tc");
  candidate->set_value("attn_o");
  auto* const row = canary.add_comparisons();
  row->set_family(v1::FAMILY_ATTN_O);
  row->set_step(v1::STEP_DECODE);
  row->set_rows_first(5);
  row->set_rows_last(8);
  row->set_control_ran("slow_arm");
  row->set_canary_ran("fast_arm");
  row->set_control_batches(950);
  row->set_canary_batches(50);
  row->set_control_p50(100e-6);
  row->set_canary_p50(80e-6);
  return canary;
}

class CanaryCommandTest : public CommandOnNode {};

TEST_F(CanaryCommandTest, SetSendsTheWholeCanary) {
  v1::StartCanaryRequest sent;
  node_.start_canary = [&](const v1::StartCanaryRequest& request, v1::Canary* response) {
    sent = request;
    *response = Running();
    return grpc::Status::OK;
  };
  const AppRun run = Run({"levers",
                          "set",
                          "m16_tc=attn_qkv,attn_o",
                          "--canary",
                          "5%",
                          "--by",
                          "shard",
                          "--guard",
                          "p99=1.02",
                          "--guard",
                          "p50=off",
                          "--guard",
                          "min_samples=50",
                          "--guard",
                          "heartbeat=30s",
                          "--guard",
                          "declines=3",
                          "--guard",
                          "min_clients=2",
                          "--promote-after",
                          "10m",
                          "--reason",
                          "one pass"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(sent.assignments(0).value(), "attn_qkv,attn_o");
  EXPECT_EQ(sent.share(), 0.05);
  EXPECT_EQ(sent.unit(), v1::CANARY_UNIT_SHARD);
  EXPECT_EQ(sent.duration_seconds(), 600);
  EXPECT_EQ(sent.on_success(), v1::CANARY_SUCCESS_PROMOTE);
  EXPECT_EQ(sent.guards().kernel_p99(), 1.02);
  EXPECT_EQ(sent.guards().kernel_p50(), -1);
  EXPECT_EQ(sent.guards().min_samples(), 50);
  EXPECT_EQ(sent.guards().heartbeat_seconds(), 30);
  EXPECT_EQ(sent.guards().max_declines(), 3);
  EXPECT_EQ(sent.guards().min_clients(), 2);
  EXPECT_EQ(sent.reason(), "one pass");
  EXPECT_THAT(run.out,
              HasSubstr("canaries/12 running, 5% by client, control epoch 13, canary epoch 12"));
  EXPECT_THAT(run.out, HasSubstr("m16_tc: control off, canary attn_o"));
  EXPECT_THAT(run.out, HasSubstr("0.800"));  // the ratio

  const std::vector<std::string> validate = {"levers",   "set", "m16_tc=off",
                                             "--canary", "5%",  "--validate-only"};
  const AppRun valid = Run(validate);
  EXPECT_EQ(valid.out.rfind("valid; nothing was changed\n", 0), 0u) << valid.out;
  EXPECT_THAT(valid.out, HasSubstr("m16_tc: control off, canary attn_o"));
  EXPECT_THAT(valid.out, Not(HasSubstr("running")));
  std::vector<std::string> as_json = validate;
  as_json.emplace_back("--json");
  EXPECT_EQ(Run(as_json).Json()["validated_only"], true);
  EXPECT_FALSE(Run(as_json).Json().contains("state"));

  ASSERT_EQ(Run({"levers", "set", "m16_tc=off", "--canary", "0.25", "--hold-after", "1h"}).exit, 0);
  EXPECT_EQ(sent.share(), 0.25);
  EXPECT_EQ(sent.unit(), v1::CANARY_UNIT_CLIENT);
  EXPECT_EQ(sent.on_success(), v1::CANARY_SUCCESS_HOLD);
  EXPECT_EQ(sent.duration_seconds(), 3600);
}

TEST_F(CanaryCommandTest, SetSaysWhatTheShareIsInTraffic) {
  v1::StartCanaryRequest sent;
  v1::UnitTraffic traffic;
  v1::CanaryUnit unit = v1::CANARY_UNIT_CLIENT;
  node_.start_canary = [&](const v1::StartCanaryRequest& request, v1::Canary* response) {
    sent = request;
    *response = Running();
    response->set_unit(unit);
    *response->mutable_traffic() = traffic;
    return grpc::Status::OK;
  };
  const auto out = [&](std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"levers", "set", "m16_tc=attn_o", "--canary", "5%"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const AppRun run = Run(arguments);
    EXPECT_EQ(run.exit, 0) << run.err;
    return run.out;
  };
  EXPECT_THAT(out(),
              HasSubstr("traffic of the last minute: 0 clients, 0 rows\n  the canary's side: "
                        "not known before there is traffic\n"));
  traffic.set_rows(4000);
  traffic.set_clients(40);
  traffic.set_units(40);
  traffic.set_canary_units(2);
  traffic.set_expected_share(0.051);
  traffic.set_largest_share(0.031);
  traffic.set_largest_unit("10.0.0.7\n");
  EXPECT_THAT(out(), HasSubstr("traffic of the last minute: 40 clients, 4000 rows; the largest "
                               "client (10.0.0.7\\n) sent 3.1%\n  the canary's side: 5.1% of "
                               "these rows, 2 of 40 clients\n"));
  EXPECT_FALSE(sent.allow_uneven());
  traffic.set_clients(1);
  traffic.set_units(1);
  traffic.set_canary_units(0);
  traffic.set_expected_share(0);
  traffic.set_largest_share(1);
  traffic.set_largest_unit("unix");
  EXPECT_THAT(out({"--allow-uneven"}),
              HasSubstr("1 client, 4000 rows; the largest client (unix) sent 100%\n  the canary's "
                        "side: 0% of these rows, 0 of 1 client: the canary gets none of them\n"));
  EXPECT_TRUE(sent.allow_uneven());
  traffic.set_canary_units(1);
  traffic.set_expected_share(1);
  EXPECT_THAT(out(), HasSubstr("1 of 1 client: there is no control to compare with"));
  unit = v1::CANARY_UNIT_CONNECTION;
  traffic.set_units(1024);
  traffic.set_expected_share(0.05);
  traffic.set_more(true);
  EXPECT_THAT(out({"--by", "connection"}), HasSubstr("1 of 1024 connections or more\n"));
  EXPECT_EQ(sent.unit(), v1::CANARY_UNIT_CONNECTION);
  unit = v1::CANARY_UNIT_BATCH;
  traffic.set_largest_share(0);
  traffic.set_expected_share(0.02);
  EXPECT_THAT(out({"--by", "batch"}), HasSubstr("2% of these rows, of calls under FASTEST\n"));
  traffic.set_expected_share(0);
  EXPECT_THAT(out({"--by", "batch"}), HasSubstr("no call under FASTEST was seen"));
  EXPECT_THAT(out({"--validate-only"}), HasSubstr("the canary's side: 0% of these rows"));
  const AppRun json = Run({"levers", "set", "m16_tc=attn_o", "--canary", "5%", "--json"});
  EXPECT_EQ(json.Json()["traffic"]["rows"], 4000);
  EXPECT_EQ(json.Json()["traffic"]["expected_share"], 0);
  EXPECT_EQ(Run({"levers", "set", "m16_tc=off", "--allow-uneven"}).exit, 2);
}

TEST_F(CanaryCommandTest, ListSaysWhoSentRowsAndANodeThatDoesNotSayIsNoError) {
  EXPECT_THAT(Run({"levers", "list"}).out, Not(HasSubstr("traffic")));
  node_.levers.mutable_traffic()->set_rows(12);
  node_.levers.mutable_traffic()->set_clients(3);
  EXPECT_THAT(Run({"levers", "list"}).out,
              HasSubstr("traffic of the last minute: 3 clients, 12 rows\n"));
  EXPECT_EQ(Run({"levers", "list", "--json"}).Json()["traffic"]["clients"], 3);
}

TEST_F(CanaryCommandTest, AWeightThatWasReplacedIsShownWithBothVersions) {
  node_.levers.set_epoch(13);
  v1::Canary& canary = *node_.levers.mutable_canary();
  canary = Running();
  canary.set_state(v1::CANARY_STATE_HOLDING);
  canary.set_restart_count(3);
  v1::CanaryRestart& restart = *canary.add_restarts();
  restart.set_shard("models/m/shards/s");
  restart.set_from_version(1);
  restart.set_to_version(2);
  restart.set_from_hash("0123456789abcdef");
  restart.set_to_hash("fedcba9876543210");
  restart.set_canary_batches(50);
  restart.set_control_batches(70);
  canary.add_restarts()->set_lever_epoch(17);
  const AppRun run = Run({"levers", "watch", "--count", "1"});
  EXPECT_THAT(run.out, HasSubstr("evidence began again 1 times more before these"));
  EXPECT_THAT(run.out, HasSubstr("models/m/shards/s version 1 (hash 0123456789ab) was replaced by "
                                 "version 2 (hash fedcba987654); put aside: 50 canary and 70 "
                                 "control batches"));
  EXPECT_THAT(run.out, HasSubstr("a lever that chooses arms was set (epoch 17)"));
  EXPECT_EQ(Run({"levers", "list", "--json"}).Json()["canary"]["restarts"][0]["to_version"], 2);
}

TEST_F(CanaryCommandTest, WrongOptionsAreToldBeforeTheNodeIsAsked) {
  const auto error = [this](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"levers", "set", "m16_tc=off"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const AppRun run = Run(arguments);
    EXPECT_EQ(run.exit, 2);
    return run.err;
  };
  for (const char* share :
       {"many", "0", "0%", "0.0", "100%", "1", "-5%", "nan", "inf", "nan%", "%"}) {
    EXPECT_THAT(error({"--canary", share}),
                HasSubstr(std::string("--canary: got \"") + share + "\"; expected a share"));
  }
  EXPECT_THAT(error({"--guard", "p99=1.1"}), HasSubstr("need --canary"));
  EXPECT_THAT(error({"--by", "client"}), HasSubstr("--by"));
  EXPECT_THAT(error({"--canary", "5%", "--guard", "p99=1.1", "--guard", "p99=off"}),
              HasSubstr("p99 is given twice"));
  EXPECT_THAT(error({"--canary", "5%", "--guard", "p42=1"}), HasSubstr("p99=RATIO"));
  for (const char* limit : {"fast", "", "inf", "+inf", "-inf", "nan", "-1", "0", "0.5", "101"}) {
    for (const char* guard : {"p50=", "p99="}) {
      EXPECT_THAT(error({"--canary", "5%", "--guard", std::string(guard) + limit}),
                  HasSubstr(absl::StrCat("--guard: got \"", guard, limit,
                                         "\"; expected p50=RATIO, p99=RATIO (1 to 100, or off)")));
    }
  }
  for (const char* time : {"inf", "0", "-1s", "nan", ""}) {
    EXPECT_THAT(error({"--canary", "5%", "--guard", std::string("heartbeat=") + time}),
                HasSubstr("--guard heartbeat: got"));
  }
  for (const char* count : {"-1", "inf", "nan", "1.5", ""}) {
    EXPECT_THAT(error({"--canary", "5%", "--guard", std::string("declines=") + count}),
                HasSubstr("--guard: got"));
  }
  EXPECT_THAT(error({"--canary", "5%", "--promote-after", "inf"}), HasSubstr("--promote-after"));
  EXPECT_THAT(error({"--canary", "5%", "--promote-after", "soon"}), HasSubstr("10m"));
  EXPECT_THAT(error({"--canary", "5%", "--promote-after", "1m", "--hold-after", "1m"}),
              HasSubstr("exclude"));
  EXPECT_THAT(error({"--canary", "5%", "--by", "moon"}), HasSubstr("moon"));
}

TEST_F(CanaryCommandTest, AnEmptyValueIsNotAnOptionThatWasLeftOut) {
  int asked = 0;
  node_.set_levers = [&](const v1::SetLeversRequest&, v1::SetLeversResponse*) {
    ++asked;
    return grpc::Status::OK;
  };
  for (const char* option : {"--canary", "--by", "--guard", "--promote-after", "--hold-after",
                             "--based-on-epoch", "--target", "--tls-ca", "--timeout"}) {
    const AppRun run = Run({"levers", "set", "m16_tc=off", option, ""});
    EXPECT_EQ(run.exit, 2) << option;
    EXPECT_THAT(run.err, HasSubstr(option));
    // The parser alone would take what comes next for the value.
    const AppRun joined =
        Run({"levers", "set", std::string(option) + "=", "m16_tc=off", "max_batch_rows=8"});
    EXPECT_EQ(joined.exit, 2) << option;
    EXPECT_THAT(joined.err, HasSubstr(std::string(option) + "=: the value is empty"));
  }
  EXPECT_THAT(Run({"levers", "set", "m16_tc=off", "--canary", ""}).err, HasSubstr("is empty"));
  EXPECT_EQ(Run({"levers", "promote", ""}).exit, 2);
  EXPECT_EQ(Run({"health", ""}).exit, 2);
  EXPECT_EQ(asked, 0);
  // No reason is as good as an empty one.
  EXPECT_EQ(Run({"levers", "set", "m16_tc=off", "--reason", ""}).exit, 0);
  EXPECT_EQ(asked, 1);
}

TEST_F(CanaryCommandTest, WatchShowsARunningCanaryUntilItIsOverAndSendsHeartbeats) {
  *node_.levers.mutable_canary() = Running();
  int beats = 0;
  node_.heartbeat_canary = [&](const v1::HeartbeatCanaryRequest& request, v1::Canary* response) {
    EXPECT_EQ(request.name(), "canaries/12");
    *response = Running();
    if (++beats == 3) response->set_state(v1::CANARY_STATE_PROMOTED);
    return grpc::Status::OK;
  };
  const AppRun watch = Run({"levers", "watch", "--every", "0.001", "--heartbeat"});
  ASSERT_EQ(watch.exit, 0) << watch.err;
  EXPECT_EQ(beats, 3);
  EXPECT_THAT(watch.out, HasSubstr("attn_o"));
  EXPECT_THAT(watch.out, HasSubstr("5-8"));
  EXPECT_THAT(watch.out, HasSubstr("\ncanaries/12 promoted: all is well\n"));
  EXPECT_EQ(Run({"levers", "watch", "--count", "2", "--every", "0.001"}).exit, 0);

  node_.levers.mutable_canary()->set_state(v1::CANARY_STATE_REVERTED);
  EXPECT_EQ(Run({"levers", "watch", "--heartbeat"}).exit, 2);
  const AppRun list = Run({"levers", "list"});
  EXPECT_THAT(list.out, HasSubstr("canaries/12 reverted: all is well"));
}

TEST_F(CanaryCommandTest, WatchRefusesHeartbeatsThatItWouldNotSend) {
  *node_.levers.mutable_canary() = Running();
  for (const std::vector<std::string>& changes :
       {std::vector<std::string>{"--events"}, {"--since-epoch", "1"}}) {
    std::vector<std::string> arguments = {"levers", "watch", "--heartbeat"};
    arguments.insert(arguments.end(), changes.begin(), changes.end());
    for (const bool json : {false, true}) {
      if (json) arguments.emplace_back("--json");
      const AppRun run = Run(arguments);
      EXPECT_EQ(run.exit, 2) << run.out;
      EXPECT_THAT(run.err, HasSubstr(changes[0] + " and --heartbeat"));
      EXPECT_THAT(run.err, HasSubstr("run a second `fulcrum levers watch --heartbeat`"));
    }
  }
  node_.levers.clear_canary();
  const AppRun none = Run({"levers", "watch", "--heartbeat"});
  EXPECT_EQ(none.exit, 2);
  EXPECT_THAT(none.err, HasSubstr("--heartbeat: no canary runs"));
}

TEST_F(CanaryCommandTest, PromoteTakesTheRunningCanary) {
  *node_.levers.mutable_canary() = Running();
  v1::PromoteCanaryRequest sent;
  node_.promote_canary = [&](const v1::PromoteCanaryRequest& request, v1::Canary* response) {
    sent = request;
    *response = Running();
    return grpc::Status::OK;
  };
  const AppRun run = Run({"levers", "promote", "--reason", "good", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(sent.name(), "canaries/12");
  EXPECT_EQ(sent.reason(), "good");
  EXPECT_EQ(run.Json()["state"], "running");
  EXPECT_EQ(run.Json()["comparisons"][0]["control"]["batches"], 950);
  node_.levers.clear_canary();
  EXPECT_EQ(Run({"levers", "promote"}).exit, 2);
  EXPECT_EQ(Run({"levers", "abort", "canaries/12"}).exit, 1);  // the script knows no abort
}

TEST_F(CanaryCommandTest, HistorySaysWhoWhyAndOnWhatEvidence) {
  v1::LeverEvent* const event = node_.lever_history.add_events();
  event->set_epoch(14);
  event->set_lever("m16_tc");
  event->set_from("attn_o:one_pass");
  event->set_to("off");
  event->set_actor("node");
  event->set_reason("try");
  event->set_cause("revert");
  event->set_canary("canaries/12");
  event->set_evidence("kernel p50 too slow");
  const AppRun run = Run({"levers", "history"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("epoch 14  m16_tc: attn_o:one_pass -> off  (revert, canaries/12"));
  EXPECT_THAT(run.out, HasSubstr("node: try)  kernel p50 too slow"));
  const AppRun json = Run({"levers", "history", "--json", "--limit", "5"});
  EXPECT_EQ(json.Json()["events"][0]["evidence"], "kernel p50 too slow");
}

}  // namespace
}  // namespace fulcrum::cli
