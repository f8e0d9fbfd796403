// The command against a scripted node: exit statuses, JSON fields, advice, what it sends.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/payload.h"
#include "tests/client/support/command_node.h"
#include "tests/client/support/fake_node.h"
#include "tests/support/weight_files.h"

namespace fulcrum::cli {
namespace {

using testing::HasSubstr;

class CommandTest : public CommandOnNode {
 protected:
  static std::vector<std::string> Keys(const nlohmann::json& json) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : json.items()) keys.push_back(key);
    return keys;
  }
};

TEST_F(CommandTest, UsageErrorsAreTwoAndHelpIsZero) {
  EXPECT_EQ(RunFulcrum({}).exit, 2);
  EXPECT_EQ(RunFulcrum({"no-such-command"}).exit, 2);
  EXPECT_EQ(RunFulcrum({"shards", "--no-such-option"}).exit, 2);
  EXPECT_EQ(RunFulcrum({"ladder"}).exit, 2);
  EXPECT_EQ(RunFulcrum({"levers"}).exit, 2);
  EXPECT_EQ(RunFulcrum({"--timeout", "-1", "shards"}).exit, 2);
  const AppRun help = RunFulcrum({"--help"});
  EXPECT_EQ(help.exit, 0);
  for (const char* name :
       {"project", "shards", "load", "replace", "unload", "levers", "ladder", "info", "health",
        "bench", "step", "ab", "verify", "replay", "inspect", "quantize"}) {
    EXPECT_THAT(help.out, HasSubstr(name));
  }
  EXPECT_EQ(RunFulcrum({"bench", "--help"}).exit, 0);
  EXPECT_THAT(RunFulcrum({"--version"}).out, HasSubstr("fulcrum "));
}

TEST_F(CommandTest, AnUnreachableNodeIsOneWithAdvice) {
  const AppRun run = RunFulcrum({"--target", "127.0.0.1:1", "shards"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_THAT(run.err, HasSubstr("127.0.0.1:1: UNAVAILABLE"));
  EXPECT_THAT(run.err, HasSubstr("is fulcrumd running"));
  EXPECT_EQ(run.out, "");
}

TEST_F(CommandTest, ShardsJsonIsAListWithStableFields) {
  const AppRun run = Run({"shards", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  const nlohmann::json expected = {{"name", "models/m/shards/a"},
                                   {"n", kN},
                                   {"k", kK},
                                   {"format", "bf16"},
                                   {"family", "attn_qkv"},
                                   {"phase", "attention"},
                                   {"device", "cpu:0"},
                                   {"bytes", 2 * kN * kK},
                                   {"hash", "00ff"},
                                   {"state", "serving"},
                                   {"version", 1},
                                   {"origin", "file.safetensors#w"},
                                   {"error", ""}};
  ASSERT_EQ(run.Json().size(), 2u);
  EXPECT_EQ(run.Json()[0], expected);
  EXPECT_EQ(Run({"--json", "shards"}).out, run.out);
  EXPECT_THAT(Run({"shards"}).out, HasSubstr("models/m/shards/b"));
}

TEST_F(CommandTest, LeversSetSendsWhatWasAskedAndShowsAborts) {
  v1::SetLeversRequest sent;
  node_.set_levers = [&](const v1::SetLeversRequest& request, v1::SetLeversResponse* response) {
    sent = request;
    if (request.based_on_epoch() == 3) return client::WithEpoch("4");
    response->set_epoch(5);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"levers", "set", "m16_tc=all:one_pass", "max_batch_rows=8", "--reason", "trial",
                 "--validate-only"})
                .exit,
            0);
  ASSERT_EQ(sent.assignments_size(), 2);
  EXPECT_EQ(sent.assignments(0).name(), "m16_tc");
  EXPECT_EQ(sent.assignments(0).value(), "all:one_pass");
  EXPECT_EQ(sent.assignments(1).value(), "8");
  EXPECT_EQ(sent.reason(), "trial");
  EXPECT_TRUE(sent.validate_only());
  const AppRun valid = Run({"levers", "set", "m16_tc=off", "--validate-only"});
  EXPECT_EQ(valid.out.rfind("valid; nothing was changed\n", 0), 0u) << valid.out;
  const AppRun json = Run({"levers", "set", "m16_tc=off", "--validate-only", "--json"});
  EXPECT_EQ(json.Json()["validated_only"], true);
  const AppRun set = Run({"levers", "set", "m16_tc=off", "--json"});
  EXPECT_FALSE(set.Json().contains("validated_only"));
  const AppRun stale = Run({"levers", "set", "m16_tc=off", "--based-on-epoch", "3"});
  EXPECT_EQ(stale.exit, 1);
  EXPECT_THAT(stale.err, HasSubstr("ABORTED"));
  EXPECT_THAT(stale.err, HasSubstr("live_epoch = 4"));
  EXPECT_EQ(Run({"levers", "set", "nonsense"}).exit, 2);
}

TEST_F(CommandTest, LeversListAndWatch) {
  node_.levers.set_epoch(7);
  v1::Lever* lever = node_.levers.add_levers();
  lever->set_name("m16_tc");
  lever->set_value("off");
  lever->set_kind(v1::LEVER_KIND_FAMILY_MAP);
  lever->set_source(v1::LEVER_SOURCE_BUILT_IN);
  lever->add_choices("off");
  const AppRun list = Run({"levers", "list", "--json"});
  ASSERT_EQ(list.exit, 0) << list.err;
  EXPECT_EQ(list.Json()["epoch"], 7);
  EXPECT_EQ(list.Json()["levers"][0]["name"], "m16_tc");
  EXPECT_EQ(list.Json()["levers"][0]["kind"], "family_map");
  EXPECT_EQ(list.Json()["levers"][0]["source"], "built_in");
  for (int i = 0; i < 3; ++i) node_.lever_events.emplace_back().set_epoch(8);
  const AppRun watch = Run({"levers", "watch", "--json", "--count", "2"});
  EXPECT_EQ(watch.exit, 0);
  EXPECT_EQ(std::count(watch.out.begin(), watch.out.end(), '\n'), 2);
}

TEST_F(CommandTest, LadderJsonHasEveryChoiceWithDeclinedRungs) {
  node_.explain_ladder = [](const v1::ExplainLadderRequest& request,
                            v1::ExplainLadderResponse* response) {
    response->set_shard(request.shard());
    response->set_lever_epoch(9);
    for (int m = 1; m <= 32; ++m) {
      v1::LadderChoice* choice = response->add_choices();
      choice->set_rows(m);
      choice->set_arm("low");
      choice->set_blocks(4);
      choice->set_waves(0.5);
      choice->set_expected_bytes(100);
      choice->add_pieces(m);
      v1::Rung* rung = choice->add_rungs();
      rung->set_arm("high");
      rung->set_verdict("lever");
      rung->set_lever("m16_tc");
      rung = choice->add_rungs();
      rung->set_arm("low");
      rung->set_verdict("runs");
    }
    return grpc::Status::OK;
  };
  const AppRun run =
      Run({"ladder", "--shard", "models/m/shards/a", "--policy", "fastest", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  const nlohmann::json choice = run.Json()["choices"][31];
  EXPECT_EQ(Keys(choice), (std::vector<std::string>{"arm", "blocks", "bytes", "class", "declined",
                                                    "pieces", "rows", "rungs", "waves"}));
  EXPECT_EQ(choice["rows"], 32);
  EXPECT_EQ(choice["declined"].size(), 1u);
  EXPECT_EQ(choice["declined"][0]["reason"], "lever");
  EXPECT_EQ(Run({"ladder", "--shard", "x", "--policy", "quickest"}).exit, 2);
}

TEST_F(CommandTest, ProjectWritesOutputAndProvenance) {
  const test::TempDir dir;
  const std::string output = dir.At("out.bf16");
  const AppRun run = Run({"project", "--shard", "models/m/shards/a", "--random", "5", "--rows", "3",
                          "--output", output, "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(ReadFile(output)->size(), size_t{3 * kN * 2});
  EXPECT_EQ(run.Json()["provenance"]["batch_rows"], 6);
  EXPECT_EQ(run.Json()["provenance"]["lever_epoch"], 7);
  EXPECT_EQ(run.Json()["outputs"][0]["arm"], "dense_gemv_bf16");
  EXPECT_EQ(run.Json()["outputs"][0]["class"], "exact");
  EXPECT_EQ(Run({"project", "--shard", "models/m/shards/a"}).exit, 2);
  EXPECT_EQ(Run({"project", "--shard", "models/m/shards/none", "--random", "1"}).exit, 1);
}

TEST_F(CommandTest, ProjectShowsWhatTheNodeRefused) {
  node_.project = [](grpc::ServerContext*, const v1::ProjectRequest*, v1::ProjectResponse*) {
    return client::WithFieldViolation("rows", "expected 1..32, got 33");
  };
  const AppRun run =
      Run({"project", "--shard", "models/m/shards/a", "--random", "5", "--rows", "33"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_THAT(run.err, HasSubstr("rows: expected 1..32, got 33"));
}

TEST_F(CommandTest, InfoHealthLoadUnload) {
  node_.info.set_node("n1");
  v1::Device* const device = node_.info.add_devices();
  device->set_id("cpu:0");
  device->set_mma_model(v1::MMA_MODEL_NOT_FOLLOWED);
  const AppRun info = Run({"info", "--json"});
  ASSERT_EQ(info.exit, 0) << info.err;
  EXPECT_EQ(info.Json()["node"], "n1");
  EXPECT_EQ(info.Json()["devices"][0]["id"], "cpu:0");
  EXPECT_EQ(info.Json()["devices"][0]["mma_model"], "not_followed");
  EXPECT_NE(Run({"info"}).out.find("not_followed"), std::string::npos);
  EXPECT_EQ(Run({"health"}).out, "SERVING\n");
  EXPECT_EQ(Run({"health", "models/m/shards/none"}).exit, 1);
  v1::LoadShardRequest sent;
  node_.load_shard = [&](const v1::LoadShardRequest& request, v1::Shard* shard) {
    sent = request;
    shard->set_name(request.name());
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"load", "models/m/shards/c", "--path", "w.safetensors", "--tensor", "t",
                 "--family", "ffn_down", "--rows", "128:256"})
                .exit,
            0);
  EXPECT_EQ(sent.name(), "models/m/shards/c");
  EXPECT_EQ(sent.family(), v1::FAMILY_FFN_DOWN);
  EXPECT_EQ(sent.file().row_begin(), 128);
  EXPECT_EQ(sent.file().row_end(), 256);
  EXPECT_EQ(Run({"replace", "models/m/shards/c", "--path", "w", "--tensor", "t"}).exit, 0);
  EXPECT_EQ(Run({"load", "x", "--path", "w", "--tensor", "t", "--rows", "1-2"}).exit, 2);
  EXPECT_EQ(Run({"unload", "models/m/shards/c"}).exit, 0);
}

class BenchTest : public CommandTest {
 protected:
  AppRun Bench(std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "bench",     "--shard", "models/m/shards/a", "--clients", "4",     "--rows", "2",
        "--seconds", "0.2",     "--warmup",          "0",         "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }
};

TEST_F(BenchTest, JsonHasTheContractsFields) {
  const AppRun run = Bench({});
  ASSERT_EQ(run.exit, 0) << run.err;
  const nlohmann::json json = run.Json();
  for (const char* key : {"calls_per_s", "rows_per_s", "p50_us", "p90_us", "p99_us", "p999_us",
                          "max_us", "mean_batch_rows", "row_weighted_batch_rows", "errors",
                          "mismatches", "stages_us", "arms", "lever_epochs", "warmup", "client"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["errors"], 0);
  EXPECT_EQ(json["mismatches"], 0);
  EXPECT_EQ(json["verified"], json["calls"]);
  EXPECT_GT(json["calls"].get<int64_t>(), 0);
  EXPECT_EQ(json["mean_batch_rows"], 4);  // the node says that a batch is twice the call
  EXPECT_EQ(json["row_weighted_batch_rows"], 4);
  EXPECT_EQ(json["lever_epochs"], nlohmann::json::array({7}));
  EXPECT_EQ(json["arms"]["dense_gemv_bf16"], json["calls"]);
  EXPECT_NEAR(json["stages_us"]["kernel"].get<double>(), 10, 1e-6);
  EXPECT_LE(json["p50_us"].get<double>(), json["p99_us"].get<double>());
}

TEST_F(BenchTest, CountsRepliesThatDiffer) {
  std::atomic<int> calls{0};
  node_.project = [&](grpc::ServerContext*, const v1::ProjectRequest* request,
                      v1::ProjectResponse* response) {
    grpc::Status status = client::SumRows(*request, kN, response);
    if (++calls % 10 == 0) (*response->mutable_outputs(0)->mutable_data())[5] ^= 1;
    return status;
  };
  const AppRun run = Bench({"--payloads", "2"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_GT(run.Json()["mismatches"].get<int64_t>(), 0);
  EXPECT_LT(run.Json()["mismatches"].get<int64_t>(), run.Json()["calls"].get<int64_t>() / 2);
}

TEST_F(BenchTest, CountsErrorsByCodeAndDoesNotRetry) {
  std::atomic<int> calls{0};
  node_.project = [&](grpc::ServerContext*, const v1::ProjectRequest* request,
                      v1::ProjectResponse* response) {
    if (++calls > 4 && calls % 2) {
      return client::WithRetryInfo(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue",
                                   absl::Milliseconds(1));
    }
    return client::SumRows(*request, kN, response);
  };
  const AppRun run = Bench({});
  EXPECT_EQ(run.exit, 1) << "a script must see that calls failed";
  EXPECT_GT(run.Json()["errors"].get<int64_t>(), 0);
  EXPECT_GT(run.Json()["calls"].get<int64_t>(), 0);
  EXPECT_THAT(run.err, HasSubstr(" calls failed, 0 replies were wrong"));
  EXPECT_EQ(run.Json()["errors_by_code"]["RESOURCE_EXHAUSTED"], run.Json()["errors"]);
}

TEST_F(BenchTest, OpenLoopStreamChannelsAndSeveralShards) {
  for (const char* arrivals : {"poisson", "constant", "burst"}) {
    const AppRun run = Bench({"--rate", "200", "--arrivals", arrivals, "--shard",
                              "models/m/shards/b", "--channels", "2"});
    ASSERT_EQ(run.exit, 0) << run.err;
    EXPECT_EQ(run.Json()["loop"], "open");
    EXPECT_LE(run.Json()["calls"].get<int64_t>(), 200);
  }
  node_.stream = [](grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::ProjectStreamResponse, v1::ProjectRequest>* s) {
    v1::ProjectRequest request;
    while (s->Read(&request)) {
      v1::ProjectStreamResponse reply;
      reply.set_call_id(request.call_id());
      client::SumRows(request, kN, reply.mutable_response());
      s->Write(reply);
    }
    return grpc::Status::OK;
  };
  const AppRun run = Bench({"--stream", "--channels", "2"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(run.Json()["errors"], 0);
  EXPECT_GT(run.Json()["calls"].get<int64_t>(), 0);
  const AppRun together = Bench({"--shard", "models/m/shards/b", "--together"});
  EXPECT_EQ(together.exit, 0) << together.err;
}

TEST_F(BenchTest, BadInputAndUnknownShard) {
  EXPECT_EQ(Bench({"--clients", "0"}).exit, 2);
  EXPECT_EQ(Bench({"--arrivals", "never"}).exit, 2);
  EXPECT_EQ(Bench({"--weights", "w.gguf"}).exit, 2);
  EXPECT_EQ(Bench({"--shard", "models/m/shards/none"}).exit, 1);
}

}  // namespace
}  // namespace fulcrum::cli
