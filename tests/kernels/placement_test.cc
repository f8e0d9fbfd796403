// Which device weights go to, and the first that has no room.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_backend.h"

namespace fulcrum {
namespace {

using test::FakeBackend;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A weight of so many bytes on a FakeBackend.
WeightSpec Bytes(int64_t bytes) {
  return {.name = "w", .format = WeightFormat::kFp8Block128, .n = bytes / 128, .k = 128};
}
PlacedWeight Weight(const std::string& name, int64_t bytes, const std::string& group = "",
                    const std::string& device = "") {
  return {.name = name,
          .spec = Bytes(bytes),
          .device = device,
          .group = group,
          .status = absl::OkStatus(),
          .placed = ""};
}
DeviceInfo Device(const char* id, int64_t budget) {
  return {.id = id, .description = "", .memory_bytes = budget};
}

TEST(PlaceAll, SaysNeedBudgetAndTheFirstWithoutRoom) {
  const FakeBackend device(Device("d:0", 1280));
  const Backend* const devices[] = {&device};
  std::vector<PlacedWeight> weights = {Weight("a", 640), Weight("b", 512), Weight("c", 256),
                                       Weight("d", 128), Weight("e", 384)};
  const absl::Status status = PlaceAll(devices, weights);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("need 1920 bytes"), HasSubstr("budget is 1280"),
                    HasSubstr("c is the first without room"), HasSubstr("128 of 1280 free")));
  EXPECT_TRUE(weights[3].status.ok());  // what still fits is placed
  EXPECT_EQ(weights[3].placed, "d:0");
  EXPECT_FALSE(weights[4].status.ok());
  weights.erase(weights.begin() + 2);
  weights.pop_back();
  EXPECT_TRUE(PlaceAll(devices, weights).ok());  // to the byte
}

TEST(PlaceAll, KeepsAGroupTogetherWhileItHasRoom) {
  const FakeBackend first(Device("d:0", 1280)), second(Device("d:1", 1280));
  const Backend* const devices[] = {&first, &second};
  std::vector<PlacedWeight> weights = {Weight("a", 512, "0"), Weight("b", 256, "0"),
                                       Weight("c", 640, "1"), Weight("d", 640, "1"),
                                       Weight("e", 512, "0"), Weight("f", 128, "1")};
  EXPECT_TRUE(absl::IsResourceExhausted(PlaceAll(devices, weights)));
  std::string placed;
  for (const PlacedWeight& w : weights) placed += w.placed + " ";
  // f finds d:1 full and goes apart; nothing is left for it there either.
  EXPECT_EQ(placed, "d:0 d:0 d:1 d:1 d:0  ");
  weights[4] = Weight("e", 256, "0");
  EXPECT_TRUE(PlaceAll(devices, weights).ok());
  EXPECT_EQ(weights[5].placed, "d:0");
}

TEST(PlaceAll, AnUnknownDeviceIsThatWeightsErrorAlone) {
  const FakeBackend device(Device("d:0", 0));
  const Backend* const devices[] = {&device};
  std::vector<PlacedWeight> weights = {Weight("a", 128, "", "d:7"), Weight("b", int64_t{1} << 50)};
  EXPECT_TRUE(PlaceAll(devices, weights).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(weights[0].status));
  EXPECT_THAT(std::string(weights[0].status.message()),
              AllOf(HasSubstr("'d:7'"), HasSubstr("d:0")));
  EXPECT_EQ(weights[1].placed, "d:0");  // no budget: no bound
}

TEST(ChooseDevice, TakesTheMostRoomOfTheHealthy) {
  FakeBackend small(Device("d:0", 640)), large(Device("d:1", 1280));
  const std::vector<DeviceUse> uses = {{.backend = &small, .used = 0},
                                       {.backend = &large, .used = 512}};
  EXPECT_EQ(*ChooseDevice(uses, Bytes(256), ""), 1u);
  EXPECT_EQ(*ChooseDevice(uses, Bytes(256), "d:0"), 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(ChooseDevice(uses, Bytes(896), "").status()));
  large.set_healthy(false);
  EXPECT_EQ(*ChooseDevice(uses, Bytes(256), ""), 0u);
  EXPECT_TRUE(absl::IsInvalidArgument(ChooseDevice(uses, Bytes(256), "d:1").status()));
  small.set_healthy(false);
  EXPECT_TRUE(absl::IsUnavailable(ChooseDevice(uses, Bytes(256), "").status()));
}

}  // namespace
}  // namespace fulcrum
