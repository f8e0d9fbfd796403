// prometheus-cpp's HTTP server behind a status.
// SPDX-License-Identifier: Apache-2.0
#include "service/metrics_endpoint.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"

namespace fulcrum::service {

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& listen,
                                                                        const Metrics& metrics) {
  try {  // the library's only way to say that an address is taken
    auto exposer = std::make_unique<prometheus::Exposer>(listen, /*num_threads=*/2);
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
