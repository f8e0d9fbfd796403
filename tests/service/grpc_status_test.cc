// Statuses on the wire: details survive, messages stay within a trailer and valid UTF-8.
// SPDX-License-Identifier: Apache-2.0
#include "service/grpc_status.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace fulcrum::service {
namespace {

google::rpc::Status Parsed(const grpc::Status& status) {
  google::rpc::Status wire;
  EXPECT_TRUE(wire.ParseFromString(status.error_details()));
  return wire;
}

TEST(GrpcStatus, OkStaysOk) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(WithRetry(absl::OkStatus(), absl::Seconds(1)).ok());
}

TEST(GrpcStatus, DetailsTravel) {
  absl::Status status = InvalidField("rows", "expected 1..32, got 33");
  status = WithRetry(std::move(status), absl::Milliseconds(1250));
  status = WithResource(std::move(status), "shard", "models/m/shards/s");
  status = WithPrecondition(std::move(status), "SHARD_STATE", "models/m/shards/s");
  status = WithInfo(std::move(status), "REASON", {{"key", "value"}});
  const grpc::Status wire = ToGrpc(status);
  EXPECT_EQ(grpc::StatusCode::INVALID_ARGUMENT, wire.error_code());
  EXPECT_EQ("rows: expected 1..32, got 33", wire.error_message());
  const google::rpc::Status parsed = Parsed(wire);
  EXPECT_EQ(3, parsed.code());
  std::set<std::string> types;
  for (const auto& any : parsed.details()) {
    types.insert(any.type_url());
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&retry)) {
      EXPECT_EQ(1, retry.retry_delay().seconds());
      EXPECT_EQ(250000000, retry.retry_delay().nanos());
    }
    google::rpc::BadRequest bad;
    if (any.UnpackTo(&bad)) {
      EXPECT_EQ("rows", bad.field_violations(0).field());
    }
    google::rpc::ErrorInfo info;
    if (any.UnpackTo(&info)) {
      EXPECT_EQ("REASON", info.reason());
      EXPECT_EQ("fulcrum", info.domain());
      EXPECT_EQ("value", info.metadata().at("key"));
    }
  }
  EXPECT_EQ(5u, types.size());
}

TEST(GrpcStatus, ASecondDetailOfATypeReplacesTheFirst) {
  absl::Status status = WithRetry(absl::ResourceExhaustedError("full"), absl::Seconds(1));
  status = WithRetry(std::move(status), absl::Seconds(2));
  const google::rpc::Status wire = ToRpcStatus(status);
  ASSERT_EQ(1, wire.details_size());
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(wire.details(0).UnpackTo(&retry));
  EXPECT_EQ(2, retry.retry_delay().seconds());
}

TEST(GrpcStatus, StatusesWithoutDetailsCarryNone) {
  EXPECT_TRUE(ToGrpc(absl::UnavailableError("draining")).error_details().empty());
}

TEST(GrpcStatus, LongAndForeignTextFitsATrailer) {
  const std::string hostile(100000, '\xff');
  absl::Status status = InvalidField("shards", hostile);
  status = WithResource(std::move(status), "shard", hostile);
  const grpc::Status wire = ToGrpc(status);
  EXPECT_LT(wire.error_message().size() + wire.error_details().size(), size_t{6000});
  EXPECT_EQ(std::string::npos, wire.error_message().find('\xff'));
  Parsed(wire);
}

TEST(GrpcStatus, WhatATerminalWouldObeyIsEscaped) {
  const grpc::Status wire = ToGrpc(absl::NotFoundError("a\n\x1b[31mb \xc3\xa9 c"));
  EXPECT_EQ("a\\x0a\\x1b[31mb \\xc3\\xa9 c", wire.error_message());
}

TEST(GrpcStatus, QuotedNamesAreBoundedAndEscaped) {
  EXPECT_EQ("\"models/m\"", Quoted("models/m"));
  EXPECT_EQ("\"a\\n\\\"\"", Quoted("a\n\""));
  EXPECT_LT(Quoted(std::string(100000, 'x')).size(), size_t{200});
}

TEST(GrpcStatus, CodesHaveTheirUsualNames) {
  EXPECT_EQ("OK", CodeName(absl::StatusCode::kOk));
  EXPECT_EQ("RESOURCE_EXHAUSTED", CodeName(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ("UNAUTHENTICATED", CodeName(absl::StatusCode::kUnauthenticated));
  EXPECT_EQ("UNKNOWN", CodeName(static_cast<absl::StatusCode>(99)));
}

}  // namespace
}  // namespace fulcrum::service
