// The metrics over HTTP: /metrics on an address of its own, nothing else.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "service/metrics.h"

namespace prometheus {
class Exposer;
}

namespace fulcrum::service {

class MetricsEndpoint {
 public:
  // `listen` is host:port; port 0 picks a free one. UNAVAILABLE when it cannot be bound. The
  // metrics outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& listen,
                                                                const Metrics& metrics);
  ~MetricsEndpoint();
  int port() const;

 private:
  explicit MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer);
  const std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace fulcrum::service
