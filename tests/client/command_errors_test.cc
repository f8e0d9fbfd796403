// What the command refuses by itself, and how it says what the node refused: once, with the cause
// and with advice that fits.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "client/cli/call_size.h"
#include "client/cli/payload.h"
#include "tests/client/support/command_node.h"
#include "tests/client/support/fake_node.h"
#include "tests/support/weight_files.h"

namespace fulcrum::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kA[] = "models/m/shards/a";

class CommandErrors : public CommandOnNode {
 protected:
  CommandErrors() {
    node_.info.mutable_limits()->set_max_decode_rows(32);
    node_.info.mutable_limits()->set_max_prefill_rows(2048);
    node_.info.mutable_limits()->set_max_message_bytes(1024);
  }
  AppRun Project(std::vector<std::string> more) {
    more.insert(more.begin(), {"project", "--shard", kA});
    return Run(more);
  }
};

TEST_F(CommandErrors, RowsBeyondTheNodesLimitsAreRefusedBeforeTheyAreMade) {
  for (const char* rows : {"2049", "1000000", "1000000000", "2147483648", "9223372036854775807"}) {
    for (const AppRun& run :
         {Project({"--random", "1", "--rows", rows, "--step", "prefill"}),
          Run({"bench", "--shard", kA, "--rows", rows, "--step", "prefill", "--seconds", "0.1"})}) {
      EXPECT_EQ(run.exit, 2) << rows;
      EXPECT_THAT(run.err, AllOf(HasSubstr("1..2048"), HasSubstr("max_prefill_rows"),
                                 HasSubstr(std::string("got ") + rows)));
    }
  }
  EXPECT_THAT(Project({"--random", "1", "--rows", "33"}).err,
              AllOf(HasSubstr("1..32"), HasSubstr("--step prefill up to 2048")));
  EXPECT_EQ(Project({"--random", "1", "--rows", "0"}).exit, 2);
  // 1024 bytes are 32 rows of 16 BF16 values.
  const AppRun large = Project({"--random", "1", "--rows", "33", "--step", "prefill"});
  EXPECT_EQ(large.exit, 2);
  EXPECT_THAT(large.err,
              AllOf(HasSubstr("1024 bytes"), HasSubstr("max_message_bytes"), HasSubstr("32 rows")));
  const test::TempDir dir;
  const std::string file = dir.At("x.f32");
  ASSERT_TRUE(WriteFile(file, std::string(17 * kK * 4, '\0')).ok());
  EXPECT_THAT(Project({"--activations", file}).err, HasSubstr("16 rows of K = 16 values of 4"));
  EXPECT_EQ(node_.projects(), 0);
  EXPECT_EQ(Project({"--random", "1", "--rows", "32"}).exit, 0);
}

TEST(CallSize, LimitsThatTheNodeDoesNotTellAreLeftToIt) {
  EXPECT_TRUE(CheckCallSize({}, v1::STEP_PREFILL, 1'000'000, 16, 2).ok());
  EXPECT_FALSE(CheckCallSize({}, v1::STEP_PREFILL, 1'000'000'000, 16, 2).ok());
  EXPECT_TRUE(CheckCallSize({}, v1::STEP_DECODE, 1, 0, 2).ok());  // a shard that never loaded
}

TEST_F(CommandErrors, ProjectSaysWhichInputIsWrong) {
  const auto error = [&](std::vector<std::string> more) {
    const AppRun run = Project(std::move(more));
    EXPECT_EQ(run.exit, 2);
    return run.err;
  };
  EXPECT_THAT(error({}), AllOf(HasSubstr("no activations"), Not(HasSubstr("both"))));
  EXPECT_THAT(error({"--random", "1", "--activations", "x.bf16"}), HasSubstr("both given"));
  EXPECT_THAT(error({"--random", "-7"}), AllOf(HasSubstr("--random"), HasSubstr("got -7")));
}

TEST_F(CommandErrors, OneOutputFileForTwoShardsIsRefused) {
  const test::TempDir dir;
  const std::string output = dir.At("out");
  const std::vector<std::string> ask = {"--random", "1", "--output", output, "--shard"};
  for (const char* second : {kA, "models/other/shards/a"}) {
    std::vector<std::string> more = ask;
    more.emplace_back(second);
    const AppRun run = Project(more);
    EXPECT_EQ(run.exit, 2) << run.out;
    EXPECT_THAT(run.err, AllOf(HasSubstr(second), HasSubstr(output + ".a")));
  }
  EXPECT_EQ(node_.projects(), 0);
}

TEST_F(CommandErrors, AFullDiskBehindStandardOutputIsAnError) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--target", node_.target(), "shards"}, {"--help"}}) {
    std::ofstream full("/dev/full");
    std::ostringstream err;
    EXPECT_EQ(RunApp(arguments, full, err), 2);
    EXPECT_THAT(err.str(), HasSubstr("standard output"));
  }
}

TEST_F(CommandErrors, ARefusalIsPrintedOnce) {
  node_.project = [](grpc::ServerContext*, const v1::ProjectRequest*, v1::ProjectResponse*) {
    return client::WithFieldViolation("shards[0]", "expected a name");
  };
  const std::string err = Project({"--random", "5"}).err;
  const size_t first = err.find("expected a name");
  ASSERT_NE(first, std::string::npos) << err;
  EXPECT_EQ(err.find("expected a name", first + 1), std::string::npos) << err;
}

TEST_F(CommandErrors, AdviceFitsTheCommand) {
  node_.set_levers = [](const v1::SetLeversRequest&, v1::SetLeversResponse*) {
    return client::WithFieldViolation("assignments[0]", "no lever x");
  };
  EXPECT_THAT(Run({"levers", "set", "x=1"}).err,
              AllOf(HasSubstr("fulcrum levers list"), Not(HasSubstr("fulcrum shards"))));
  node_.set_levers = [](const v1::SetLeversRequest&, v1::SetLeversResponse*) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "nothing was changed: the journal is full");
  };
  EXPECT_THAT(Run({"levers", "set", "x=1"}).err,
              AllOf(HasSubstr("the journal is full"), Not(HasSubstr("is fulcrumd running"))));
  EXPECT_THAT(RunFulcrum({"--target", "unix:/nowhere/x", "levers", "set", "x=1"}).err,
              HasSubstr("is fulcrumd running"));
  node_.load_shard = [](const v1::LoadShardRequest&, v1::Shard*) {
    return client::WithFieldViolation("file.tensor", "no tensor t");
  };
  const std::vector<std::string> load = {"load", kA, "--path", "w", "--tensor", "t"};
  EXPECT_THAT(Run(load).err, AllOf(HasSubstr("fulcrum inspect"), Not(HasSubstr("fulcrum levers"))));
  node_.load_shard = [](const v1::LoadShardRequest&, v1::Shard*) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "outside the weight roots");
  };
  EXPECT_THAT(Run(load).err,
              AllOf(HasSubstr("outside the weight roots"), Not(HasSubstr("certificate"))));
}

TEST_F(CommandErrors, AReasonThatIsNotUtf8IsRefusedByName) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"levers", "set", "x=1"}, {"levers", "abort", "canaries/1"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--reason", "a\xff"});
    const AppRun run = Run(arguments);
    EXPECT_EQ(run.exit, 2);
    EXPECT_THAT(run.err, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("--reason")));
  }
  EXPECT_THAT(Run({"levers", "set", "x=\xff"}).err, HasSubstr("NAME=VALUE: expected UTF-8"));
}

TEST_F(CommandErrors, AReasonCannotForgeALineOfTheHistory) {
  v1::LeverEvent* const event = node_.lever_history.add_events();
  event->set_lever("m16_tc");
  event->set_actor("a");
  event->set_reason("fine)\n2026-01-01T00:00:00+00:00  epoch 9  forged\x1b[2J");
  node_.lever_events.push_back(*event);
  for (const AppRun& run : {Run({"levers", "history"}), Run({"levers", "watch", "--count", "1"})}) {
    EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
    EXPECT_THAT(run.out, AllOf(HasSubstr("fine)\\n2026"), HasSubstr("\\x1b[2J")));
  }
}

TEST_F(CommandErrors, LadderLinesThatAreTheSameAreOne) {
  node_.explain_ladder = [](const v1::ExplainLadderRequest& request,
                            v1::ExplainLadderResponse* response) {
    response->set_shard(request.shard());
    for (int m = 1; m <= 32; ++m) {
      v1::LadderChoice* choice = response->add_choices();
      choice->set_rows(m);
      choice->set_arm(m < 5 ? "few" : "many");
      if (m == 32) choice->add_pieces(16);
      choice->add_pieces(m == 32 ? 16 : m);
    }
    return grpc::Status::OK;
  };
  const AppRun run = Run({"ladder", "--shard", kA});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 5) << run.out;
  EXPECT_THAT(run.out, AllOf(HasSubstr("\n 1..4  few"), HasSubstr("\n5..31  many"),
                             HasSubstr("\n   32  many"), HasSubstr("16+16")));
}

}  // namespace
}  // namespace fulcrum::cli
