// A journal that takes no more while the node runs: what is refused, what takes effect all the
// same, that it is an error in the log, and that nothing of it is lost once there is a file again.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "tests/service/support/lever_requests.h"
#include "tests/service/support/test_server.h"
#include "tests/support/weight_files.h"

namespace fulcrum {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LeverNotKept : public test::ServerTest {
 protected:
  LeverNotKept() { log_descriptor_ = ::fileno(log_); }
  ~LeverNotKept() override {
    StopNode();  // it writes to the log
    std::fclose(log_);
  }
  void StartNode() {
    Start([this](service::Config& config) {
      config.lever_journal = path_;
      config.log_level = "info";
    });
    levers_ = v1::LeverService::NewStub(channel_);
  }
  void StopNode() {
    levers_.reset();
    stub_.reset();
    channel_.reset();
    backend_ = nullptr;
    server_.reset();
  }
  grpc::Status Set(const std::string& value) {
    return test::SetLever(*levers_, "max_batch_rows", value);
  }
  std::string StartCanary() {
    grpc::ClientContext context;
    v1::Canary canary;
    const grpc::Status status = levers_->StartCanary(
        &context, test::CanaryRequest("coalesce_window_us", "5", 0.5), &canary);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return canary.name();
  }
  v1::Canary Abort(const std::string& name) {
    grpc::ClientContext context;
    v1::AbortCanaryRequest request;
    request.set_name(name);
    v1::Canary canary;
    const grpc::Status status = levers_->AbortCanary(&context, request, &canary);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return canary;
  }
  uint64_t Epoch() {
    grpc::ClientContext context;
    v1::ListLeversResponse response;
    EXPECT_TRUE(levers_->ListLevers(&context, {}, &response).ok());
    return response.epoch();
  }
  // The log's lines of a level, so far.
  std::string Log(const std::string& level) {
    std::rewind(log_);
    std::string lines;
    char line[4096];
    while (std::fgets(line, sizeof(line), log_) != nullptr) {
      if (std::string(line).find("level=" + level) != std::string::npos) lines += line;
    }
    return lines;
  }
  void Lose() { ASSERT_EQ(std::rename(path_.c_str(), away_.c_str()), 0); }
  void PutBack() { ASSERT_EQ(std::rename(away_.c_str(), path_.c_str()), 0); }

  const test::TempDir dir_;
  const std::string path_ = dir_.At("levers.journal"), away_ = dir_.At("away");
  std::FILE* const log_ = std::tmpfile();
  std::unique_ptr<v1::LeverService::Stub> levers_;
};

TEST_F(LeverNotKept, IsAnErrorInTheLogAndNoEpochIsGivenTwice) {
  StartNode();
  const std::string canary = StartCanary();
  EXPECT_THAT(Log("info"), HasSubstr("canary"));
  EXPECT_EQ(Log("error"), "");

  Lose();
  EXPECT_THAT(server_->metrics().Text(), HasSubstr("fulcrum_lever_journal_behind 0"));
  EXPECT_THAT(Abort(canary).evidence(), HasSubstr("not in the journal"));
  EXPECT_THAT(server_->metrics().Text(), HasSubstr("fulcrum_lever_journal_behind 1"));
  const std::string errors = Log("error");
  EXPECT_THAT(errors, HasSubstr("lever change not in the journal"));
  EXPECT_THAT(errors, HasSubstr("cause=abort"));
  EXPECT_THAT(errors, HasSubstr("state=aborted"));
  EXPECT_THAT(Log("info"), Not(HasSubstr("state=aborted")));
  const uint64_t aborted = Epoch();
  EXPECT_EQ(Set("8").error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(Log("error"), HasSubstr("cause=set"));
  EXPECT_EQ(Epoch(), aborted);

  PutBack();
  EXPECT_TRUE(Set("8").ok());
  EXPECT_THAT(server_->metrics().Text(), HasSubstr("fulcrum_lever_journal_behind 0"));
  EXPECT_EQ(Epoch(), aborted + 1);
  StopNode();
  StartNode();
  // The canary was over before: this start has nothing to end, and no number to make up.
  EXPECT_EQ(Epoch(), aborted + 1);
}

}  // namespace
}  // namespace fulcrum
