// prometheus-cpp's HTTP server behind a status.
// SPDX-License-Identifier: Apache-2.0
#include "service/metrics_endpoint.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"

namespace fulcrum::service {
namespace {

// A connection holds a thread of the HTTP server until it has sent its request. Threads for many
// scrapers at once, and a bound on how long a silent one keeps its own: whoever connects and says
// nothing delays a scrape by this bound at most for every round of that many connections.
constexpr char kThreads[] = "32";
constexpr char kRequestTimeoutMs[] = "2000";

std::vector<std::string> ServerOptionsFor(const std::string& listen) {
  return {
      "listening_ports",   listen, "num_threads", kThreads, "request_timeout_ms", kRequestTimeoutMs,
      "enable_keep_alive", "no"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& listen,
                                                                        const Metrics& metrics) {
  try {  // the library's only way to say that an address is taken
    auto exposer = std::make_unique<prometheus::Exposer>(ServerOptionsFor(listen));
    for (const auto& collectable : metrics.collectables()) {
      exposer->RegisterCollectable(collectable);
    }
    return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(std::move(exposer)));
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat(
        "metrics_listen: cannot listen on \"", listen,
        "\": is the address taken, or not of this machine? Choose another, or \"off\" (", e.what(),
        ")"));
  }
}

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer)
    : exposer_(std::move(exposer)) {}
MetricsEndpoint::~MetricsEndpoint() = default;

int MetricsEndpoint::port() const { return exposer_->GetListeningPorts().front(); }

}  // namespace fulcrum::service
