// A real node in the test's process that serves the synthetic model `small` on one CPU thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "client/cpp/client.h"
#include "service/server.h"

namespace fulcrum::test {

class SmallNode {
 public:
  explicit SmallNode(const std::function<void(service::Config&)>& change = nullptr) {
    service::Config config;
    config.listen = "127.0.0.1:0";
    config.metrics_listen = "off";
    config.log_level = "error";
    config.backend = "cpu";
    config.cpu_threads = 1;
    service::ModelConfig model;
    model.model = "small";
    model.source = service::SyntheticName{"small"};
    config.models.push_back(std::move(model));
    if (change) change(config);
    auto server = service::Server::Start(config, {});
    EXPECT_TRUE(server.ok()) << server.status();
    if (!server.ok()) return;
    server_ = *std::move(server);
    EXPECT_TRUE(server_->WaitLoaded().ok());
  }
  std::string address() const { return server_->address(); }
  const std::string& id() const { return server_->node_id(); }  // new at every start
  // As SIGTERM does.
  void Shutdown(absl::Duration patience) { server_->Shutdown(patience); }
  std::string Lever(const std::string& name) const {
    const auto client = client::Client::Connect(address());
    const auto levers = (*client)->ListLevers();
    for (const v1::Lever& lever : levers->levers()) {
      if (lever.name() == name) return lever.value();
    }
    return "";
  }

 private:
  std::unique_ptr<service::Server> server_;
};

}  // namespace fulcrum::test
