// What a node says, in its log and to callers, of a device whose tensor cores do not compute as the
// emulator, and of one whose do.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "fulcrum/v1/shard_service.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "service/server.h"
#include "tests/support/fake_backend.h"

namespace fulcrum::service {
namespace {

struct Said {
  std::string log;
  v1::MmaModel model = v1::MMA_MODEL_UNSPECIFIED;
};

Said OfDevice(const MmaProbe& probe) {
  Said said;
  int ends[2];
  EXPECT_EQ(0, ::pipe(ends));
  {
    Config config;
    config.listen = "127.0.0.1:0";
    config.metrics_listen = "off";
    ServerOptions options;
    options.backends.push_back(std::make_unique<test::FakeBackend>(
        DeviceInfo{.id = "fake:0", .description = "a GPU", .caps = kCapMma, .mma_probe = probe}));
    options.log_descriptor = ends[1];
    const auto server = Server::Start(config, std::move(options));
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) {
      const auto stub = v1::ShardService::NewStub(
          grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      v1::NodeInfo info;
      EXPECT_TRUE(stub->GetNodeInfo(&context, {}, &info).ok());
      if (info.devices_size() == 1) said.model = info.devices(0).mma_model();
    }
  }
  ::close(ends[1]);
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    said.log.append(buffer, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  return said;
}

TEST(MmaModel, IsSaidOfEveryDeviceAndWarnedOfWhereAuditsAreOff) {
  constexpr char kLine[] = "event=device id=fake:0 description=\"a GPU\"";
  constexpr char kWarning[] = "class mma is not audited";

  const Said follows = OfDevice({.outputs = 4096, .agreeing = 4096});
  EXPECT_EQ(v1::MMA_MODEL_FOLLOWED, follows.model);
  EXPECT_NE(std::string::npos, follows.log.find(kLine)) << follows.log;
  EXPECT_NE(std::string::npos, follows.log.find("mma_model=followed")) << follows.log;
  EXPECT_EQ(std::string::npos, follows.log.find(kWarning)) << follows.log;

  const Said other = OfDevice({.outputs = 4096, .agreeing = 4095});
  EXPECT_EQ(v1::MMA_MODEL_NOT_FOLLOWED, other.model);
  EXPECT_NE(std::string::npos, other.log.find("mma_model=not_followed")) << other.log;
  EXPECT_NE(std::string::npos, other.log.find(kWarning)) << other.log;
  EXPECT_NE(std::string::npos, other.log.find("device=fake:0 outputs=4096 agreeing=4095"))
      << other.log;

  const Said none = OfDevice({});
  EXPECT_EQ(v1::MMA_MODEL_NOT_MEASURED, none.model);
  EXPECT_NE(std::string::npos, none.log.find("mma_model=not_measured")) << none.log;
  EXPECT_EQ(std::string::npos, none.log.find(kWarning)) << none.log;
}

}  // namespace
}  // namespace fulcrum::service
