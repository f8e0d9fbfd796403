// A node over a fake device that calls can be made to while others hold it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "tests/service/support/test_server.h"

namespace fulcrum::test {

class ProjectTest : public ServerTest {
 protected:
  // A call on a thread of its own, for tests that hold the device.
  struct Pending {
    explicit Pending(std::unique_ptr<grpc::ClientContext> c) : context(std::move(c)) {}
    ~Pending() {
      if (thread.joinable()) thread.join();
    }
    std::unique_ptr<grpc::ClientContext> context;
    v1::ProjectResponse response;
    grpc::Status status;
    std::thread thread;
  };
  std::unique_ptr<Pending> Async(const v1::ProjectRequest& request,
                                 std::optional<absl::Duration> timeout = std::nullopt) {
    auto context = std::make_unique<grpc::ClientContext>();
    if (timeout) context->set_deadline(absl::ToChronoTime(absl::Now() + *timeout));
    auto pending = std::make_unique<Pending>(std::move(context));
    pending->thread = std::thread([this, request, p = pending.get()] {
      p->status = stub_->Project(p->context.get(), request, &p->response);
    });
    return pending;
  }
  // Keeps the only slot busy, so that further calls wait.
  std::unique_ptr<Pending> Occupy() {
    backend_->Hold();
    auto pending = Async(Request());
    backend_->AwaitLaunches(1);
    return pending;
  }
};

}  // namespace fulcrum::test
