// fulcrum health: grpc.health.v1 Check of the node or one shard, and why not, in the node's words.
// Exit 1 unless SERVING.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

class Health final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("service", &service_, "A shard's name (default: the whole node)");
  }

  int Run(const Context& context) override {
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto status = (*client)->CheckHealth(service_, context.Call());
    if (!status.ok()) return context.NodeError(status.status());
    const bool serving = *status == "SERVING";
    // The health service has no word for why; a node that cannot be asked leaves it at that.
    std::string why;
    if (!serving) {
      const auto info = (*client)->GetNodeInfo(context.Call());
      if (info.ok()) why = info->not_serving();
    }
    if (context.json()) {
      Print(context.out(), {{"service", service_}, {"status", *status}, {"why", why}});
    } else {
      context.out() << *status << (why.empty() ? "" : ": ") << why << "\n";
    }
    return serving ? kOk : kFailed;
  }

 private:
  std::string service_;
};

}  // namespace

std::unique_ptr<Command> MakeHealth() { return std::make_unique<Health>(); }

}  // namespace fulcrum::cli
