// Configuration text: defaults, places of errors, and what is refused before a start.
// SPDX-License-Identifier: Apache-2.0
#include "service/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/support/weight_files.h"

namespace fulcrum::service {
namespace {

using ::testing::HasSubstr;

Config Parsed(const std::string& text) {
  absl::StatusOr<Config> config = ParseConfig(text, "node.txtpb");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *std::move(config) : Config{};
}
// What reading alone finds, the rest of the text being right.
std::string ParseError(const std::string& text) {
  const absl::StatusOr<Config> config = ParseConfig(text, "node.txtpb");
  if (!config.ok()) return std::string(config.status().message());
  return std::string(CheckConfig(*config).message());
}
std::string CheckError(const std::string& text) {
  return std::string(CheckConfig(Parsed(text)).message());
}

TEST(Config, TheEmptyTextIsTheDocumentedDefault) {
  const Config config = Parsed("");
  EXPECT_EQ(config.listen, "127.0.0.1:50051");
  EXPECT_EQ(config.metrics_listen, "127.0.0.1:9464");
  EXPECT_EQ(config.backend, "auto");
  EXPECT_EQ(config.profile, "exact");
  EXPECT_EQ(config.default_policy, Policy::kBatchInvariant);
  EXPECT_EQ(config.limits.max_prefill_rows, 2048);
  EXPECT_EQ(config.limits.max_message_bytes, 64 << 20);
  EXPECT_EQ(config.limits.max_queue_rows, 4096);
  EXPECT_EQ(config.limits.max_queue_bytes, 1 << 30);
  EXPECT_EQ(config.limits.max_stream_calls, 64);
  EXPECT_EQ(config.limits.max_concurrent_streams, 1024);
  EXPECT_EQ(config.limits.max_connection_age, absl::InfiniteDuration());
  EXPECT_EQ(config.audit.outputs_per_batch, 4);
  EXPECT_EQ(config.audit.scrub, absl::Seconds(600));
  EXPECT_EQ(config.drain, absl::Seconds(20));
  EXPECT_EQ(config.tls.reload, absl::Seconds(10));
  EXPECT_EQ(config.log_level, "info");
  EXPECT_FALSE(config.tls.enabled());
  EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
}

TEST(Config, EveryKindOfFieldIsTaken) {
  const Config config = Parsed(R"pb(
    listen: "unix:/run/fulcrum.sock"
    metrics_listen: "off"
    backend: "cpu"
    cpu_threads: 3
    models { model: "a" checkpoint: "/data/a" allow_nan: true }
    models { model: "b" synthetic: "small" }
    models {
      model: "c"
      shards {
        shard {
          name: "q"
          path: "/w"
          tensor: "t"
          family: FAMILY_ATTN_QKV
          row_begin: 128
          row_end: 256
        }
      }
    }
    default_policy: POLICY_FASTEST
    levers { key: "m16_tc" value: "attn_o" }
    levers { key: "audit_rate" value: "0.5" }
    latched_levers: "m16_tc"
    limits { max_queue_rows: 9999 max_connection_age_seconds: 60 }
    lever_journal: "/var/lib/levers.journal"
    audit { scrub_seconds: -1 bundle_folder: "/" }
    drain_seconds: 0.5
  )pb");
  EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
  EXPECT_EQ(config.listen, "unix:/run/fulcrum.sock");
  ASSERT_EQ(config.models.size(), 3u);
  EXPECT_EQ(std::get<CheckpointPath>(config.models[0].source).path, "/data/a");
  EXPECT_TRUE(config.models[0].allow_nan);
  EXPECT_EQ(std::get<SyntheticName>(config.models[1].source).name, "small");
  const auto& shards = std::get<std::vector<ExplicitShardConfig>>(config.models[2].source);
  ASSERT_EQ(shards.size(), 1u);
  EXPECT_EQ(shards[0].family, Family::kAttnQkv);
  EXPECT_EQ(shards[0].row_end, 256);
  EXPECT_EQ(config.default_policy, Policy::kFastest);
  EXPECT_EQ(config.levers.at("audit_rate"), "0.5");
  EXPECT_EQ(config.limits.max_queue_rows, 9999);
  EXPECT_EQ(config.limits.max_queue_bytes, 1 << 30);
  EXPECT_EQ(config.limits.max_connection_age, absl::Minutes(1));
  EXPECT_EQ(config.audit.scrub, absl::ZeroDuration());
  EXPECT_EQ(config.lever_journal, "/var/lib/levers.journal");
  EXPECT_EQ(config.bundle_folder, "/");
  EXPECT_EQ(config.drain, absl::Milliseconds(500));
}

TEST(Config, TextErrorsCarryLineAndColumn) {
  EXPECT_EQ(ParseError("listen: \"[::1]:1\"\n  lisen: \"b:2\"\n"),
            "node.txtpb:2:8: Message type \"fulcrum.v1.NodeConfig\" has no field named \"lisen\".");
  EXPECT_THAT(ParseError("limits {\n  max_queue_rows: \"many\"\n}"),
              HasSubstr("node.txtpb:2:19: "));
  EXPECT_THAT(ParseError("default_policy: POLICY_BEST"),
              HasSubstr("node.txtpb:1:28: Unknown enumeration"));
  EXPECT_THAT(ParseError("cpu_threads: 99999999999"), HasSubstr("node.txtpb:1:14: "));
  EXPECT_THAT(ParseError("listen: \"a\"\nlisten: \"b\""), HasSubstr("node.txtpb:2:"));
  EXPECT_THAT(ParseError("limits {"), HasSubstr("node.txtpb:1:"));
}

TEST(Config, ValuesTheTextFormatLetsThroughAreRefusedWithTheirPlace) {
  EXPECT_EQ(ParseError("\ndefault_policy: 99"),
            "node.txtpb:2:1: default_policy: 99 is not a policy");
  EXPECT_EQ(ParseError("models { model: \"a\" }"),
            "node.txtpb:1:1: models[0]: has no source; set one of: checkpoint, synthetic, shards");
  EXPECT_EQ(ParseError("models {\n model: \"a\"\n shards { shard { family: 77 name: \"s\" path: "
                       "\"p\" tensor: \"t\" } }\n}"),
            "node.txtpb:3:19: models[0].shards.shard[0].family: 77 is not a family");
  EXPECT_EQ(ParseError("drain_seconds: nan"),
            "node.txtpb:1:1: drain_seconds: nan is not a number of seconds");
  EXPECT_EQ(ParseError("levers { key: \"m16_tc\" value: \"off\" }\n"
                       "levers { key: \"m16_tc\" value: \"all\" }"),
            "node.txtpb:2:1: levers[m16_tc] is set twice, first at node.txtpb:1:1");
}

TEST(Config, ChecksListEveryProblemWithItsPlace) {
  EXPECT_EQ(CheckError("backend: \"gpu\"\nlimits { max_stream_calls: -5 }\n"
                       "levers { key: \"m16_tc\" value: \"attn_o:m99\" }\n"
                       "latched_levers: \"m17\"\n"),
            "node.txtpb:1:1: backend: 'gpu'; expected one of: auto, cpu, cuda\n"
            "node.txtpb:3:1: levers[m16_tc]: lever m16_tc: no choice 'm99'; expected one of: off, "
            "one_pass, m16, m16_n64\n"
            "node.txtpb:4:1: latched_levers[0]: no lever 'm17'; levers are: m16_tc, w8a8_prefill, "
            "q2_warp_rows, q2_imma, coalesce_window_us, max_batch_rows, audit_rate, shadow_rate\n"
            "node.txtpb:2:10: limits.max_stream_calls: -5; expected 1 to 65536");
}

TEST(Config, PathsOfJournalAndBundlesAreChecked) {
  EXPECT_EQ(CheckError("lever_journal: \"levers\"\naudit { bundle_folder: \"/no/such\" }\n"),
            "node.txtpb:1:1: lever_journal: 'levers'; expected an absolute path of a file\n"
            "node.txtpb:2:9: audit.bundle_folder: '/no/such': No such file or directory");
  EXPECT_EQ(CheckError("lever_journal: \"/no/such/levers\"\n"),
            "node.txtpb:1:1: lever_journal: '/no/such/levers': its folder: No such file or "
            "directory");
  EXPECT_EQ(CheckError("lever_journal: \"/dev/null\"\n"),
            "node.txtpb:1:1: lever_journal: '/dev/null' is not a regular file");
}

TEST(Config, EveryProblemIsListedWhateverItsKind) {
  const test::TempDir dir;
  const std::string errors = ParseError(
      absl::StrCat("lisen: \"a\"\n"
                   "default_policy: POLICY_BEST\n"
                   "models { model: \"A\" }\n"
                   "models { model: \"b\" shards { shard { family: FAMILY_NOPE name: \"x\" } } }\n"
                   "tls { certificate: \"",
                   dir.At("c"), "\" key: \"", dir.At("k"), "\" client_ca: \"", dir.At("ca"),
                   "\" }\n"
                   "audit { scrub: 1 }\n"
                   "drain_seconds: -1\n"));
  for (const std::string& part :
       {std::string("no field named \"lisen\""), std::string("\"POLICY_BEST\""),
        std::string("models[0]: has no source"), std::string("models[0].model: model name 'A'"),
        std::string("\"FAMILY_NOPE\""), std::string("models[1].shards.shard[0].path: is not set"),
        dir.At("c") + ": No such file", dir.At("k") + ": No such file",
        dir.At("ca") + ": No such file", std::string("no field named \"scrub\""),
        std::string("drain_seconds: -1s")}) {
    EXPECT_THAT(errors, HasSubstr(part));
  }
  EXPECT_EQ(11 + 1, std::count(errors.begin(), errors.end(), '\n') + 1) << errors;  // and tensor
}

TEST(Config, WhatOverridesAFieldIsBlamedForIt) {
  Config config = Parsed("listen: \"127.0.0.1:1\"");
  config.listen = "nonsense";
  config.places["listen"] = "--listen";
  EXPECT_EQ(CheckConfig(config).message(),
            "--listen: listen: 'nonsense'; expected host:port, [ipv6]:port or unix:PATH");
}

TEST(Config, AnAddressOthersReachNeedsTlsOrTheOperatorsWord) {
  EXPECT_THAT(CheckError("listen: \"0.0.0.0:50051\""), HasSubstr("allow_insecure_bind"));
  EXPECT_THAT(CheckError("listen: \"[::]:50051\""), HasSubstr("allow_insecure_bind"));
  EXPECT_THAT(CheckError("listen: \"example.com:50051\""), HasSubstr("allow_insecure_bind"));
  EXPECT_EQ(CheckError("listen: \"0.0.0.0:50051\" allow_insecure_bind: true"), "");
  EXPECT_THAT(CheckError("metrics_listen: \"0.0.0.0:9464\""), HasSubstr("without TLS"));
  EXPECT_EQ(CheckError("metrics_listen: \"0.0.0.0:9464\" allow_insecure_bind: true"), "");
  for (const char* loopback : {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/s"}) {
    EXPECT_TRUE(IsLoopback(loopback)) << loopback;
  }
  for (const char* open : {"0.0.0.0:1", "[::]:1", "128.0.0.1:1", "10.0.0.1:1", "127.1:1",
                           "localhost.example.com:1", "127.0.0.1.example.com:1", "", ":1",
                           "dns:///localhost:1", "[::ffff:10.0.0.1]:1", "vsock:1:1"}) {
    EXPECT_FALSE(IsLoopback(open)) << open;
  }
  for (const char* bad : {"", "localhost", "localhost:", "localhost:65536", "localhost:-1",
                          "localhost:http", ":1", "dns:///a:1", "unix:", "[::1:1", "a b:1"}) {
    Config config;
    config.listen = bad;
    EXPECT_THAT(std::string(CheckConfig(config).message()), HasSubstr("listen: ")) << bad;
  }
}

TEST(Config, FilesAndFoldersMustBeThere) {
  const test::TempDir dir;
  const std::string file = dir.Write("file", "x");
  const auto root_error = [](const std::string& root) {
    return CheckError(absl::StrCat("weight_roots: \"", root, "\""));
  };
  EXPECT_EQ(root_error(dir.path()), "");
  EXPECT_THAT(root_error(file), HasSubstr("is not a folder"));
  EXPECT_THAT(root_error(dir.At("absent")), HasSubstr("No such file"));
  EXPECT_THAT(root_error("relative"), HasSubstr("expected an absolute path"));
  EXPECT_THAT(CheckError(absl::StrCat("tls { certificate: \"", dir.At("c.pem"), "\" key: \"k\" }")),
              HasSubstr("c.pem: No such file"));
  EXPECT_THAT(CheckError(absl::StrCat("tls { certificate: \"", file, "\" key: \"", file, "\" }")),
              HasSubstr("holds no PEM certificate"));
  EXPECT_THAT(CheckError("tls { certificate: \"c\" }"), HasSubstr("needs both"));
  EXPECT_THAT(CheckError("tls { client_ca: \"c\" }"), HasSubstr("needs certificate and key"));
  EXPECT_THAT(CheckError("tls { admin_clients: \"a\" }"), HasSubstr("needs client_ca"));

  EXPECT_TRUE(absl::IsNotFound(LoadConfig(dir.At("absent")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LoadConfig(dir.path()).status()));
  const auto loaded = LoadConfig(dir.Write("node.txtpb", "backend: \"cpu\""));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->backend, "cpu");
}

TEST(Config, ModelsAreNamedOnceAndRight) {
  EXPECT_THAT(CheckError("models { model: \"A\" synthetic: \"small\" }"),
              HasSubstr("node.txtpb:1:10: models[0].model: model name 'A'"));
  EXPECT_THAT(CheckError("models { model: \"a\" synthetic: \"small\" }\n"
                         "models { model: \"a\" synthetic: \"small\" }"),
              HasSubstr("node.txtpb:2:10: models[1].model: 'a' is configured twice"));
  EXPECT_THAT(CheckError("models { model: \"a\" shards {} }"), HasSubstr("lists no shard"));
  const std::string errors = CheckError(
      "models { model: \"a\" shards { shard { name: \"x/y\" row_begin: 5 row_end: 5 "
      "expect_hash: \"AB\" } } }");
  for (const char* part :
       {"shard[0].name", "shard[0].path: is not set", "shard[0].tensor: is not set",
        "shard[0].row_begin: 5 to 5", "shard[0].expect_hash"}) {
    EXPECT_THAT(errors, HasSubstr(part));
  }
}

TEST(Config, WhoMaySayWhoAClientIs) {
  const Config config = Parsed(
      "identity { header: \"x-fulcrum-client\" trusted_peers: \"10.0.0.0/8\" "
      "trusted_peers: \"unix:\" }");
  EXPECT_EQ(config.identity.header, "x-fulcrum-client");
  EXPECT_EQ(config.identity.trusted_peers, (std::vector<std::string>{"10.0.0.0/8", "unix:"}));
  EXPECT_TRUE(CheckConfig(config).ok()) << CheckConfig(config);
  EXPECT_THAT(CheckError("identity {\n  header: \"X-Client\"\n  trusted_peers: \"10.0.0.1\"\n}"),
              HasSubstr("node.txtpb:2:3: identity.header: 'X-Client': expected a header's name"));
  EXPECT_THAT(CheckError("identity { header: \"x-client\" }"),
              HasSubstr("node.txtpb:1:12: identity.header: needs trusted_peers"));
  EXPECT_THAT(CheckError("identity { trusted_peers: \"10.0.0.1\" }"),
              HasSubstr("identity.trusted_peers: needs header"));
  EXPECT_THAT(
      CheckError("identity {\n  header: \"x-client\"\n  trusted_peers: \"10.0.0.1\"\n"
                 "  trusted_peers: \"10.0.0.1/8\"\n}"),
      HasSubstr("node.txtpb:4:3: identity.trusted_peers[1]: '10.0.0.1/8': it has bits behind"));
  EXPECT_THAT(CheckError("identity { header: \"x-client\" trusted_peers: \"proxy.example\" }"),
              HasSubstr("identity.trusted_peers[0]: 'proxy.example' is no address, and a "
                        "certificate's name needs tls.client_ca"));
  EXPECT_THAT(
      CheckError("tls { client_ca: \"/none\" } identity { header: \"x-client\" "
                 "trusted_peers: \"10.0.0.1\" trusted_peers: \"proxy.example\" }"),
      HasSubstr("identity.trusted_peers[0]: '10.0.0.1': with tls.client_ca every peer has"));
  EXPECT_THAT(CheckError("identity { header: \"authorization\" trusted_peers: \"10.0.0.1\" }"),
              HasSubstr("its value is a secret"));
}

TEST(Config, LimitsThatContradictEachOther) {
  EXPECT_THAT(CheckError("limits { max_queue_rows: 64 }"), HasSubstr("max_prefill_rows, 2048"));
  EXPECT_EQ(CheckError("limits { max_queue_rows: 64 max_prefill_rows: 64 }"), "");
  EXPECT_THAT(CheckError("limits { max_message_bytes: 5000000000 }"), HasSubstr("expected"));
  EXPECT_THAT(CheckError("drain_seconds: -1"), HasSubstr("drain_seconds: -1s"));
}

}  // namespace
}  // namespace fulcrum::service
