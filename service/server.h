// The composition root: the only place that builds the concrete parts of a node and ties them
// together. Usable in a process of tests: port 0, injected backends, no signals. What the process
// does with signals and exit codes is main.cc's.
//
// Start: the plan of what to load, backends, levers, metrics, shard store, auditor, scheduler,
// services, listen; then the configured shards load on a thread of their own while health can
// already be asked. What headers of weight files refuse is refused before the node listens. The
// node is NOT_SERVING until all are resident; each shard serves as soon as it is. Stop: health says
// NOT_SERVING, new calls are UNAVAILABLE, accepted ones run, streams and watches end, the listener
// closes, all within a bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "service/config.h"

namespace fulcrum {
class Scheduler;
class ShardStore;
}  // namespace fulcrum

namespace fulcrum::service {

class Metrics;
class NodeHealth;

struct ServerOptions {
  std::map<std::string, std::string> environment;  // lever variables
  // Used in place of those that the configuration names, for tests.
  std::vector<std::unique_ptr<Backend>> backends;
  // Called at most once, from any thread, when the node cannot go on: a configured shard failed to
  // load, or a device was lost. Must not call back into the server.
  std::function<void(const absl::Status& why)> on_failure;
  int log_descriptor = 2;
};

class Server {
 public:
  // Returns once the node listens. Errors are clear sentences, one a line: INVALID_ARGUMENT for the
  // configuration and for models that are not there, cannot be served or have no room, else what
  // was missing.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config, ServerOptions options);
  ~Server();  // Shutdown without patience

  // Blocks until the configured shards are resident, or says why one is not.
  absl::Status WaitLoaded() const;

  // Stops the node: refuses new calls at once, gives accepted ones until `patience`, then cancels.
  // Returns soon after `patience` at the latest. Metrics can still be scraped, until destruction.
  // Idempotent.
  void Shutdown(absl::Duration patience);

  int port() const;                    // of the gRPC listener; 0 for a Unix socket
  const std::string& address() const;  // to connect to: "127.0.0.1:50051", "unix:/run/f.sock"
  int metrics_port() const;            // 0 when off
  const std::string& node_id() const;

  // The parts, for tests.
  Scheduler& scheduler();
  ShardStore& shards();
  Metrics& metrics();
  NodeHealth& health();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace fulcrum::service
