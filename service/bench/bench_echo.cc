// What gRPC itself costs here: unary calls with the node's messages and sizes, and no work behind
// them. What the node adds on top is bench_overhead.cc's.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>

#include "service/bench/echo_server.h"
#include "service/bench/project_loop.h"

namespace {

using fulcrum::service::EchoKind;

struct Case {
  int64_t rows, k, n;
  int in_flight;
};
constexpr Case kCases[] = {
    {1, 5120, 1024, 1},   {1, 5120, 17408, 1},  {1, 5120, 17408, 8},
    {1, 5120, 17408, 32}, {16, 5120, 17408, 1}, {16, 5120, 17408, 8},
};

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: bench_echo [--json]\n");
    return 2;
  }
  fulcrum::service::SettleProcess();
  if (!json) {
    std::printf("%-6s %5s %6s %6s %9s %10s %8s %8s %12s\n", "server", "rows", "k", "n", "in_flight",
                "calls/s", "p50_us", "p99_us", "faults/call");
  }
  bool failed = false;
  for (const Case& c : kCases) {
    for (const EchoKind kind : {EchoKind::kProto, EchoKind::kRaw}) {
      const char* name = kind == EchoKind::kProto ? "proto" : "raw";
      const int64_t reply_bytes = c.rows * c.n * 2;
      const auto server = fulcrum::service::StartEchoServer(kind, reply_bytes);
      if (server == nullptr) {
        std::fprintf(stderr, "bench_echo: no loopback port could be bound\n");
        return 1;
      }
      const auto result = fulcrum::service::RunProjectLoop(
          {.address = server->address(), .reply_bytes = reply_bytes},
          fulcrum::service::MakeRequest("models/echo/shards/none", c.rows, c.k),
          {.in_flight = c.in_flight});
      failed |= result.errors > 0 || result.latency_us.empty();
      std::printf(json ? "{\"server\":\"%s\",\"rows\":%ld,\"k\":%ld,\"n\":%ld,\"in_flight\":%d,"
                         "\"calls_per_s\":%.0f,\"p50_us\":%.1f,\"p99_us\":%.1f,"
                         "\"faults_per_call\":%.2f}\n"
                       : "%-6s %5ld %6ld %6ld %9d %10.0f %8.1f %8.1f %12.2f\n",
                  name, static_cast<long>(c.rows), static_cast<long>(c.k), static_cast<long>(c.n),
                  c.in_flight, result.CallsPerSecond(), result.Percentile(0.5),
                  result.Percentile(0.99), result.faults_per_call);
    }
  }
  return failed ? 1 : 0;
}
