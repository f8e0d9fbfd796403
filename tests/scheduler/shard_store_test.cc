// Shards' lives: loading, placing, replacing, unloading, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/shard_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/event.h"
#include "tests/support/fake_backend.h"

namespace fulcrum {
namespace {

using test::FakeBackend;
using test::TaggedWeight;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TagOf(const Shard& shard) {
  return std::to_string(static_cast<int>(dynamic_cast<FakeBackend::Weight&>(*shard.weight).tag()));
}

LoadRequest Request(std::string name, int tag, int64_t n = 4) {
  return {.name = std::move(name),
          .family = Family::kAttnO,
          .source = TaggedWeight(tag, n),
          .device = "",
          .expect_hash = ""};
}

// A source that waits at its first read until it is let go, or fails.
class GatedWeight : public WeightSource {
 public:
  explicit GatedWeight(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}
  const WeightSpec& spec() const override { return source_->spec(); }
  std::span<const float> scales() const override { return source_->scales(); }
  std::string origin() const override { return "gated"; }
  absl::Status ReadRows(int64_t row, int64_t count, std::span<std::byte> out) const override {
    if (!reading.HasBeenNotified()) reading.Notify();
    go.WaitForNotification();
    return fault.ok() ? source_->ReadRows(row, count, out) : fault;
  }
  mutable test::Event reading;
  test::Event go;
  absl::Status fault;

 private:
  const std::shared_ptr<const WeightSource> source_;
};

class ShardStoreTest : public ::testing::Test {
 protected:
  FakeBackend backend_;
  test::Event draining_;
  std::vector<std::string> changes_;  // "name state version"
  ShardStore store_{{&backend_}, [this](const ShardInfo& info) {
                      changes_.push_back(info.name + " " + std::string(Name(info.state)) + " " +
                                         std::to_string(info.version));
                      if (info.state == ShardState::kDraining) draining_.Notify();
                    }};
};

TEST_F(ShardStoreTest, ALoadedShardServesAndIsDescribed) {
  const auto shard = store_.Load(Request("s", 7));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ((*shard)->name, "s");
  EXPECT_EQ((*shard)->family, Family::kAttnO);
  EXPECT_EQ((*shard)->backend, &backend_);
  EXPECT_EQ((*shard)->version, 1u);
  EXPECT_EQ((*shard)->hash.size(), 64u);
  EXPECT_EQ((*shard)->checksum, *(*shard)->weight->Checksum());
  EXPECT_EQ(*store_.Find("s"), *shard);
  const auto list = store_.List();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].state, ShardState::kServing);
  EXPECT_EQ(list[0].device, "fake:0");
  EXPECT_EQ(list[0].hash, (*shard)->hash);
  EXPECT_EQ(list[0].resident_bytes, 4 * 128);
  EXPECT_THAT(list[0].origin, HasSubstr("memory:"));
  EXPECT_THAT(changes_, ElementsAre("s loading 0", "s serving 1"));
  EXPECT_TRUE(absl::IsNotFound(store_.Find("t").status()));
  EXPECT_TRUE(absl::IsAlreadyExists(store_.Load(Request("s", 8)).status()));
}

TEST_F(ShardStoreTest, ListsByName) {
  for (const char* name : {"b", "c", "a"}) ASSERT_TRUE(store_.Load(Request(name, 1)).ok());
  std::string names;
  for (const ShardInfo& info : store_.List()) names += info.name;
  for (const auto& shard : store_.Serving()) names += shard->name;
  EXPECT_EQ(names, "abcabc");
}

TEST_F(ShardStoreTest, RefusedWeightsFailTheLoadAndMayBeTriedAgain) {
  LoadRequest nan = Request("s", 0x7f);  // the E4M3 NaN code
  const absl::Status refused = store_.Load(nan).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("shard s"));
  const absl::Status find = store_.Find("s").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(find));
  EXPECT_THAT(std::string(find.message()), HasSubstr("failed"));
  ASSERT_EQ(store_.List().size(), 1u);
  EXPECT_EQ(store_.List()[0].state, ShardState::kFailed);
  EXPECT_EQ(store_.List()[0].error, refused);
  nan.allow_nan = true;
  EXPECT_TRUE(store_.Load(nan).ok());
  EXPECT_TRUE(store_.List()[0].error.ok());
}

TEST_F(ShardStoreTest, WhatIsWrongWithARequestIsSaid) {
  EXPECT_TRUE(absl::IsInvalidArgument(store_.Load(Request("", 1)).status()));
  LoadRequest none = Request("s", 1);
  none.source = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(store_.Load(none).status()));
  LoadRequest nowhere = Request("s", 1);
  nowhere.device = "cuda:9";
  const absl::Status status = store_.Load(nowhere).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("fake:0"));
  LoadRequest other = Request("s", 1);
  other.expect_hash = std::string(64, '0');
  const absl::Status hash = store_.Load(other).status();
  EXPECT_TRUE(absl::IsDataLoss(hash)) << hash;
  EXPECT_THAT(std::string(hash.message()), HasSubstr(other.expect_hash));
}

TEST_F(ShardStoreTest, TheOldVersionServesDuringAReplaceAndStaysIfItFails) {
  EXPECT_TRUE(absl::IsNotFound(store_.Replace(Request("s", 2)).status()));
  ASSERT_TRUE(store_.Load(Request("s", 1)).ok());
  changes_.clear();
  for (const bool fails : {true, false}) {
    LoadRequest request = Request("s", 2);
    auto gated = std::make_shared<GatedWeight>(request.source);
    if (fails) gated->fault = absl::DataLossError("the file was cut");
    request.source = gated;
    absl::Status result;
    std::thread replace([&] { result = store_.Replace(request).status(); });
    gated->reading.WaitForNotification();
    EXPECT_EQ(TagOf(**store_.Find("s")), "1");
    EXPECT_EQ(store_.List()[0].state, ShardState::kReplacing);
    EXPECT_TRUE(absl::IsFailedPrecondition(store_.Replace(Request("s", 3)).status()));
    EXPECT_TRUE(absl::IsFailedPrecondition(store_.Unload("s", absl::ZeroDuration())));
    EXPECT_TRUE(absl::IsAlreadyExists(store_.Load(Request("s", 3)).status()));
    gated->go.Notify();
    replace.join();
    EXPECT_EQ(absl::IsDataLoss(result), fails) << result;
    EXPECT_EQ(TagOf(**store_.Find("s")), fails ? "1" : "2");
    EXPECT_EQ((*store_.Find("s"))->version, fails ? 1u : 2u);
    EXPECT_EQ(store_.List()[0].error.ok(), !fails);
  }
  EXPECT_THAT(changes_,
              ElementsAre("s replacing 1", "s serving 1", "s replacing 1", "s serving 2"));
}

TEST_F(ShardStoreTest, ReloadsFromWrongFilesKeepTheOldVersion) {
  ASSERT_TRUE(store_.Load(Request("s", 1)).ok());
  LoadRequest wrong = Request("s", 2);
  wrong.expect_hash = (*store_.Find("s"))->hash;
  EXPECT_TRUE(absl::IsDataLoss(store_.Replace(wrong).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_.Replace(Request("s", 0x7f)).status()));
  EXPECT_EQ(TagOf(**store_.Find("s")), "1");
}

TEST_F(ShardStoreTest, UnloadRefusesNewCallsAndWaitsForOldOnes) {
  EXPECT_TRUE(absl::IsNotFound(store_.Unload("s", absl::ZeroDuration())));
  auto held = *store_.Load(Request("s", 1));
  absl::Status waited = absl::UnknownError("");
  std::thread unload([&] { waited = store_.Unload("s", absl::InfiniteDuration()); });
  draining_.WaitForNotification();
  EXPECT_TRUE(absl::IsFailedPrecondition(store_.Find("s").status()));
  EXPECT_TRUE(absl::IsAlreadyExists(store_.Load(Request("s", 2)).status()));
  const absl::Status still = store_.Unload("s", absl::ZeroDuration());
  EXPECT_TRUE(absl::IsDeadlineExceeded(still)) << still;
  EXPECT_TRUE(store_.Serving().empty());
  EXPECT_EQ(TagOf(*held), "1");  // its memory is whole
  held.reset();
  unload.join();
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_TRUE(store_.List().empty());
  EXPECT_THAT(changes_, ElementsAre("s loading 0", "s serving 1", "s draining 1"));
  EXPECT_EQ((*store_.Load(Request("s", 2)))->version, 2u);  // versions never come back
}

TEST_F(ShardStoreTest, ADrainedShardWhoseUnloadGaveUpIsGoneWithItsLastCall) {
  auto held = *store_.Load(Request("s", 1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_.Unload("s", absl::ZeroDuration())));
  held.reset();
  EXPECT_TRUE(store_.List().empty());
  EXPECT_TRUE(absl::IsNotFound(store_.Find("s").status()));
  EXPECT_TRUE(store_.Load(Request("s", 2)).ok());
}

TEST_F(ShardStoreTest, CallbacksMayUseTheStore) {
  std::string seen;
  ShardStore* store = nullptr;
  ShardStore own({&backend_}, [&](const ShardInfo& info) {
    seen += std::string(Name(info.state)) + (store->Find(info.name).ok() ? "+ " : "- ");
    if (info.state == ShardState::kServing && info.name == "a") {
      EXPECT_TRUE(store->Load(Request("b", 2)).ok());  // told after this callback returns
    }
  });
  store = &own;
  ASSERT_TRUE(own.Load(Request("a", 1)).ok());
  EXPECT_EQ(seen, "loading- serving+ loading+ serving+ ");
}

// A source whose rows must not be read.
class UnreadWeight : public WeightSource {
 public:
  UnreadWeight(WeightSpec spec, std::vector<float> scales)
      : spec_(std::move(spec)), scales_(std::move(scales)) {}
  const WeightSpec& spec() const override { return spec_; }
  std::span<const float> scales() const override { return scales_; }
  std::string origin() const override { return "unread"; }
  absl::Status ReadRows(int64_t, int64_t, std::span<std::byte>) const override {
    ADD_FAILURE() << "rows were read";
    return absl::DataLossError("rows were read");
  }

 private:
  const WeightSpec spec_;
  const std::vector<float> scales_;
};

LoadRequest Unread(int64_t n, float scale) {
  const WeightSpec spec{
      .name = "w", .format = WeightFormat::kFp8Block128, .n = n, .k = 128, .q2_block = 64};
  LoadRequest request = Request("s", 1);
  request.source = std::make_shared<UnreadWeight>(
      spec, std::vector<float>(static_cast<size_t>(spec.scale_rows()), scale));
  return request;
}

TEST(ShardStoreCost, WhatTheHeaderRefusesIsRefusedBeforeARowIsRead) {
  FakeBackend device({.id = "d:0", .description = "", .memory_bytes = 1280});
  ShardStore store({&device}, nullptr);
  ASSERT_TRUE(store.Load(Request("held", 1, 4)).ok());
  struct Case {
    const char* what;
    LoadRequest request;
    absl::StatusCode code;
    const char* says;
  };
  LoadRequest elsewhere = Unread(1, 1), no_hash = Unread(1, 1), held = Unread(1, 1);
  elsewhere.device = "d:7";
  no_hash.expect_hash = "abc";
  held.name = "held";
  const std::vector<Case> cases = {
      {"budget", Unread(7, 1), absl::StatusCode::kResourceExhausted, "896 bytes"},
      {"scale", Unread(1, 1e38f), absl::StatusCode::kInvalidArgument, "1e+38"},
      {"size", Unread(kMaxWeightN + 1, 1), absl::StatusCode::kInvalidArgument, "slices"},
      {"device", elsewhere, absl::StatusCode::kInvalidArgument, "d:7"},
      {"hash", no_hash, absl::StatusCode::kInvalidArgument, "64"},
      {"name", held, absl::StatusCode::kAlreadyExists, "replace it"}};
  for (const Case& c : cases) {
    const absl::Status status = store.Load(c.request).status();
    EXPECT_EQ(status.code(), c.code) << c.what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says)) << c.what;
    LoadRequest replace = c.request;
    replace.name = "held";
    if (std::string(c.what) == "name") continue;
    EXPECT_EQ(store.Replace(replace).status().code(), c.code) << c.what;
    EXPECT_EQ(TagOf(**store.Find("held")), "1") << c.what;
  }
  // A replacement needs room for both: 512 bytes are held, 768 left.
  const absl::Status both = store
                                .Replace([] {
                                  LoadRequest request = Unread(7, 1);
                                  request.name = "held";
                                  return request;
                                }())
                                .status();
  EXPECT_THAT(std::string(both.message()),
              ::testing::AllOf(HasSubstr("896 bytes"), HasSubstr("768 of 1280"),
                               HasSubstr("beside the old version")));
}

TEST_F(ShardStoreTest, SaysByNameAndDeviceWhatALoadWouldAnswer) {
  EXPECT_TRUE(store_.CheckLoad("s", "").ok());
  EXPECT_TRUE(store_.CheckLoad("s", "fake:0").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(store_.CheckLoad("s", "cuda:9")));
  EXPECT_TRUE(absl::IsNotFound(store_.CheckReplace("s", "")));
  ASSERT_TRUE(store_.Load(Request("s", 1)).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store_.CheckLoad("s", "")));
  EXPECT_TRUE(store_.CheckReplace("s", "").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(store_.CheckReplace("s", "cuda:9")));
  backend_.set_healthy(false);
  EXPECT_TRUE(absl::IsUnavailable(store_.CheckLoad("t", "")));
}

TEST(ShardStorePlacement, TheMostRoomThatIsHealthyAndNeverTooMuch) {
  FakeBackend small({.id = "d:0", .description = "", .memory_bytes = 10 * 128});
  FakeBackend large({.id = "d:1", .description = "", .memory_bytes = 14 * 128});
  ShardStore store({&small, &large}, nullptr);
  EXPECT_EQ((*store.Load(Request("a", 1, 8)))->backend, &large);
  EXPECT_EQ((*store.Load(Request("b", 1, 4)))->backend, &small);
  EXPECT_EQ((*store.Load(Request("c", 1, 6)))->backend, &small);
  const absl::Status full = store.Load(Request("d", 1, 7)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("768 of 1792"));
  EXPECT_EQ((*store.Load(Request("e", 1, 6)))->backend, &large);  // exactly the rest
  // A replaced version needs room beside the old one; a call that holds the old one keeps it.
  EXPECT_TRUE(absl::IsResourceExhausted(store.Replace(Request("e", 2, 6)).status()));
  EXPECT_TRUE(store.Unload("a", absl::ZeroDuration()).ok());
  auto held = *store.Find("e");
  EXPECT_EQ((*store.Replace(Request("e", 2, 6)))->backend, &large);
  EXPECT_TRUE(absl::IsResourceExhausted(store.Replace(Request("e", 3, 6)).status()));
  held.reset();
  EXPECT_TRUE(store.Replace(Request("e", 3, 6)).ok());
  small.set_healthy(false);
  large.set_healthy(false);
  EXPECT_TRUE(absl::IsUnavailable(store.Load(Request("f", 1, 1)).status()));
}

}  // namespace
}  // namespace fulcrum
