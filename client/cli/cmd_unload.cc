// fulcrum unload: a shard refuses new calls, finishes its accepted ones and frees its memory.
// SPDX-License-Identifier: Apache-2.0
#include <ostream>

#include "client/cli/commands.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

class Unload final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--name,name", &name_, "models/MODEL/shards/SHARD");
    options.Required();
    options.Add("--patience", &patience_, "Seconds to wait for accepted calls (0: the node's 30)");
  }

  int Run(const Context& context) override {
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    v1::UnloadShardRequest request;
    request.set_name(name_);
    request.set_patience_seconds(patience_);
    const absl::Status status = (*client)->UnloadShard(request, context.Call());
    if (!status.ok()) return context.NodeError(status);
    context.out() << (context.json() ? "{}" : name_ + ": unloaded") << "\n";
    return kOk;
  }

 private:
  std::string name_;
  double patience_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeUnload() { return std::make_unique<Unload>(); }

}  // namespace fulcrum::cli
