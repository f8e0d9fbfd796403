// What the log says of tensors that are not served.
// SPDX-License-Identifier: Apache-2.0
#include "service/initial_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "absl/strings/str_cat.h"
#include "service/server.h"
#include "tests/support/weight_files.h"

namespace fulcrum::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LogOfALoad : public ::testing::Test {
 protected:
  // The lines of a start that serves the file.
  std::string Log(const std::string& path, const std::string& level) {
    Config config;
    config.listen = "127.0.0.1:0";
    config.metrics_listen = "off";
    config.backend = "cpu";
    config.cpu_threads = 1;
    config.log_level = level;
    config.models = {{.model = "m", .source = CheckpointPath{path}}};
    FILE* const log = std::tmpfile();
    ServerOptions options;
    options.log_descriptor = ::fileno(log);
    {
      const auto server = Server::Start(config, std::move(options));
      EXPECT_TRUE(server.ok()) << server.status();
      EXPECT_TRUE(server.ok() && (*server)->WaitLoaded().ok());
    }
    std::string text;
    std::rewind(log);
    for (int c = std::fgetc(log); c != EOF; c = std::fgetc(log))
      text.push_back(static_cast<char>(c));
    std::fclose(log);
    return text;
  }
  static size_t Count(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
    return count;
  }

  const test::TempDir dir_;
};

constexpr char kOne[] = "event=\"tensor not served\"", kMany[] = "event=\"tensors not served\"";

TEST_F(LogOfALoad, HasOneLineAReasonAtInfoAndOneATensorAtDebug) {
  test::SafetensorsBuilder builder;
  builder.Add("lm_head.weight", "BF16", {1, 1}, "12");
  for (int i = 0; i < 3; ++i) {
    builder.Add(absl::StrCat("model.layers.", i, ".norm.weight"), "BF16", {1}, "12");
    builder.Add(absl::StrCat("a b", i, ".weight"), "BF16", {1, 1}, "12");
  }
  builder.Add("model.embed_tokens.weight", "BF16", {1, 1}, "12");
  const std::string path = dir_.Write("w.safetensors", builder.Build());
  const std::string info = Log(path, "info");
  EXPECT_EQ(Count(info, kMany), 3u) << info;
  EXPECT_EQ(Count(info, kOne), 0u) << info;
  EXPECT_THAT(info, AllOf(HasSubstr("reason=norm count=3 example=model.layers.0.norm.weight"),
                          HasSubstr("reason=\"no legal shard name\" count=3"),
                          HasSubstr("reason=embedding count=1"), HasSubstr("skipped_tensors=7")));
  const std::string debug = Log(path, "debug");
  EXPECT_EQ(Count(debug, kMany), 3u);
  EXPECT_EQ(Count(debug, kOne), 7u);
  EXPECT_THAT(debug, HasSubstr("LoadShard"));  // the whole reason
}

TEST_F(LogOfALoad, IsNotFloodedByReasonsThatOthersChose) {
  test::SafetensorsBuilder builder;
  builder.Add("lm_head.weight", "BF16", {1, 1}, "12");
  for (int dimensions = 3; dimensions <= 16; ++dimensions) {
    builder.Add(absl::StrCat("w", dimensions, ".weight"), "BF16",
                std::vector<int64_t>(static_cast<size_t>(dimensions), 1), "12");
  }
  for (const auto& [type, size] : std::map<std::string, size_t>{{"U8", 1},
                                                                {"I8", 1},
                                                                {"BOOL", 1},
                                                                {"U16", 2},
                                                                {"I16", 2},
                                                                {"U32", 4},
                                                                {"I32", 4},
                                                                {"U64", 8},
                                                                {"I64", 8},
                                                                {"F64", 8}}) {
    builder.Add(type + ".weight", type, {1, 1}, std::string(size, '1'));
  }
  const std::string info = Log(dir_.Write("w.safetensors", builder.Build()), "info");
  EXPECT_EQ(Count(info, kMany), 21u) << info;
  EXPECT_THAT(info, AllOf(HasSubstr("reasons=4"), Not(HasSubstr(kOne))));
}

}  // namespace
}  // namespace fulcrum::service
