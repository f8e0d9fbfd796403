// Replicas that are restarted one after another, and a client that knows both: no call fails.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"
#include "service/server.h"
#include "tests/client/support/small_node.h"

namespace fulcrum::client {
namespace {

// A node that can be stopped and started again on the port it had first.
class Replica {
 public:
  Replica() { Start("127.0.0.1:0"); }
  const std::string& address() const { return address_; }
  const std::string& id() const { return node_->id(); }
  void Restart() {
    node_->Shutdown(absl::Seconds(20));
    node_.reset();
    Start(address_);
  }

 private:
  void Start(const std::string& listen) {
    node_ = std::make_unique<test::SmallNode>(
        [&listen](service::Config& config) { config.listen = listen; });
    address_ = node_->address();
  }
  std::unique_ptr<test::SmallNode> node_;
  std::string address_;
};

v1::ProjectRequest OneRow() {
  v1::ProjectRequest request;
  request.add_shards("models/small/shards/layers.0.ffn_gate");
  request.set_rows(1);
  request.set_activations(std::string(512 * 2, '\0'));
  return request;
}

// Threads that call without a pause, and what became of their calls.
class Callers {
 public:
  explicit Callers(Client& client) {
    for (int i = 0; i < 4; ++i) threads_.emplace_back([this, &client] { Run(client); });
  }
  ~Callers() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Waits until a node has answered.
  void Await(const std::string& node) {
    const auto answered = [&]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return nodes_.contains(node); };
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&answered), absl::Seconds(60))) << node;
  }
  std::vector<absl::Status> failed() {
    absl::MutexLock lock(&mu_);
    return failed_;
  }

 private:
  void Run(Client& client) {
    while (!stop_) {
      const auto reply = client.Project(OneRow());
      absl::MutexLock lock(&mu_);
      if (reply.ok()) {
        nodes_.insert(reply->provenance().node());
      } else {
        failed_.push_back(reply.status());
      }
    }
  }

  std::atomic<bool> stop_ = false;
  absl::Mutex mu_;
  std::set<std::string> nodes_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Status> failed_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

TEST(RollingRestart, OfTwoReplicasFailsNoCall) {
  Replica replicas[2];
  ClientOptions options;
  options.balance = true;
  const auto client =
      Client::Connect("ipv4:" + replicas[0].address() + "," + replicas[1].address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  Callers callers(**client);
  for (const Replica& replica : replicas) callers.Await(replica.id());
  for (int round = 0; round < 3; ++round) {
    for (Replica& replica : replicas) {
      replica.Restart();
      callers.Await(replica.id());  // the other may go once this one is in use again
    }
  }
  callers.Stop();
  const std::vector<absl::Status> failed = callers.failed();
  EXPECT_TRUE(failed.empty()) << failed.size() << ": " << failed.front();
}

}  // namespace
}  // namespace fulcrum::client
