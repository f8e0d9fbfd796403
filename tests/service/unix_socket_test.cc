// A node's Unix socket belongs to one node at a time, and goes with it.
// SPDX-License-Identifier: Apache-2.0
#include "service/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "proto/unix_target.h"
#include "tests/service/support/test_server.h"
#include "tests/support/weight_files.h"

namespace fulcrum {
namespace {

service::Config OnSocket(const test::TempDir& dir) {
  service::Config config;
  config.listen = "unix:" + dir.At("node.sock");
  config.metrics_listen = "off";
  config.log_level = "error";
  config.backend = "cpu";
  config.cpu_threads = 1;
  return config;
}

TEST(UnixSocket, ALivingNodesSocketIsNotTakenOver) {
  const test::TempDir dir;
  service::Config config = OnSocket(dir);
  const auto health = [&] {
    const std::string request;
    return test::RawCall(grpc::CreateChannel(config.listen, grpc::InsecureChannelCredentials()),
                         "/grpc.health.v1.Health/Check", request)
        .ok();
  };
  auto first = service::Server::Start(config, {});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = service::Server::Start(config, {});
  EXPECT_EQ(absl::StatusCode::kUnavailable, second.status().code());
  EXPECT_NE(absl::string_view::npos, second.status().message().find(config.listen))
      << second.status();
  EXPECT_TRUE(health());
  // Nothing is left beside the socket.
  EXPECT_EQ(1, std::distance(std::filesystem::directory_iterator(dir.path()), {}));
  first->reset();
  EXPECT_FALSE(std::filesystem::exists(dir.At("node.sock")));
}

TEST(UnixSocket, AStaleSocketIsReplacedAndAnotherNodesIsNotRemoved) {
  const test::TempDir dir;
  service::Config config = OnSocket(dir);
  const std::string path = dir.At("node.sock");
  const auto leave_socket = [&path] {  // as a killed process does
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(0, ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)));
    ::close(fd);
  };
  leave_socket();
  auto node = service::Server::Start(config, {});
  ASSERT_TRUE(node.ok()) << node.status();
  std::filesystem::remove(path);
  leave_socket();
  node->reset();
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
  dir.Write("node.sock", "a file");
  EXPECT_EQ(absl::StatusCode::kUnavailable, service::Server::Start(config, {}).status().code());
}

// gRPC would read these as URIs: escapes decoded, cut at '?' and '#', refused for a blank.
TEST(UnixSocket, APathIsTakenAsItStands) {
  for (const char* name : {"a%41", "a%2Fb", "100%", "a?b", "a#b", "a b", "a:b", "\xc3\xa4"}) {
    const test::TempDir dir;
    service::Config config = OnSocket(dir);
    config.listen = "unix:" + dir.At(name);
    const auto node = service::Server::Start(config, {});
    ASSERT_TRUE(node.ok()) << name << ": " << node.status();
    EXPECT_EQ((*node)->address(), config.listen);
    const std::filesystem::directory_iterator files(dir.path());
    EXPECT_EQ(files->path().filename(), name);
    EXPECT_EQ(1, std::distance(files, {})) << name;
    const auto channel =
        grpc::CreateChannel(GrpcTarget(config.listen), grpc::InsecureChannelCredentials());
    EXPECT_TRUE(test::RawCall(channel, "/grpc.health.v1.Health/Check", {}).ok()) << name;
  }
}

// The system would take the path up to it.
TEST(UnixSocket, APathHasNoZeroByte) {
  service::Config config;
  config.listen = std::string("unix:/tmp/a\0z", 13);
  const absl::Status status = service::CheckConfig(config);
  EXPECT_NE(absl::string_view::npos, status.message().find("unix:/tmp/a\\x00z")) << status;
}

TEST(GrpcTarget, OnlyPathsOfUnixSocketsAreEncoded) {
  for (const char* same :
       {"127.0.0.1:50051", "dns:///a%41:1", "ipv4:1.2.3.4:5,6.7.8.9:1", "unix:/run/f-1.sock", ""}) {
    EXPECT_EQ(GrpcTarget(same), same);
  }
  EXPECT_EQ(GrpcTarget("unix:a%41 ?#/b"), "unix:a%2541%20%3F%23/b");
}

}  // namespace
}  // namespace fulcrum
