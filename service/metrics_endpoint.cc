// prometheus-cpp's HTTP server behind a status.
// SPDX-License-Identifier: Apache-2.0
#include "service/metrics_endpoint.h"

#include <civetweb.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CivetServer.h"
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

// The exposer answers GET alone. A probe that asks with HEAD whether the page is there gets the
// headers, and no scrape is made for it. 0 leaves the request to the exposer.
int AnswerHead(mg_connection* connection) {
  const mg_request_info* const request = mg_get_request_info(connection);
  if (std::string_view(request->request_method) != "HEAD") return 0;
  if (request->local_uri == nullptr || std::string_view(request->local_uri) != "/metrics") return 0;
  mg_printf(connection,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
            "Connection: close\r\n\r\n");
  return 200;
}

CivetCallbacks Callbacks() {
  CivetCallbacks callbacks;
  callbacks.begin_request = &AnswerHead;
  return callbacks;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& listen,
                                                                        const Metrics& metrics) {
  try {  // the library's only way to say that an address is taken
    const CivetCallbacks callbacks = Callbacks();  // copied by the server
    auto exposer = std::make_unique<prometheus::Exposer>(ServerOptionsFor(listen), &callbacks);
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
