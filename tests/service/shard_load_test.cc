// LoadShard and ReplaceShard: what is checked, and in which order.
// SPDX-License-Identifier: Apache-2.0
#include "tests/service/support/shard_service_rig.h"

namespace fulcrum::service {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

class ShardLoad : public ShardServiceTest {};

// In the order of what the checks cost: nothing is opened for a name or a device that is refused.
TEST_F(ShardLoad, NameAndDeviceAreCheckedBeforeTheFile) {
  auto request = Request("absent.safetensors");
  EXPECT_EQ(Load(request).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Replace(request).error_code(), StatusCode::NOT_FOUND);
  request.set_device("cuda:9");
  const grpc::Status device = Load(request);
  EXPECT_EQ(device.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf<google::rpc::BadRequest>(device).field_violations(0).field(), "device");
  EXPECT_THAT(device.error_message(), HasSubstr("cpu:0"));
  dir_.Write("a.safetensors", File(1));
  ASSERT_TRUE(Load(Request("a.safetensors")).ok());
  EXPECT_EQ(Load(Request("absent.safetensors")).error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(
      DetailOf<google::rpc::ResourceInfo>(Replace(Request("absent.safetensors"))).resource_type(),
      "file");
}

TEST_F(ShardLoad, AScaleThatOverflowsIsRefusedUnlessAllowed) {
  dir_.Write("a.safetensors", test::SafetensorsBuilder()
                                  .Add("w.weight", "F8_E4M3", {2, 4}, "12345678")
                                  .Add("w.weight_scale_inv", "F32", {1, 1},
                                       test::ArrayBytes(std::vector<float>{1e38f}))
                                  .Build());
  dir_.Write("b.safetensors", File(1));
  auto request = Request("a.safetensors");
  const grpc::Status refused = Load(request);
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(),
              ::testing::AllOf(HasSubstr("w.weight"), HasSubstr("block [0, 0]"), HasSubstr("1e+38"),
                               HasSubstr("allow_nan")));
  ASSERT_TRUE(Load(Request("b.safetensors")).ok());
  EXPECT_EQ(Replace(request).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(store_->Find(kName).ok());
  request.set_allow_nan(true);
  EXPECT_TRUE(Replace(request).ok());
}

}  // namespace
}  // namespace fulcrum::service
