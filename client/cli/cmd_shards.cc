// fulcrum shards: what the node holds.
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

class Shards final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--model", &model_, "Only this model's shards");
  }

  int Run(const Context& context) override {
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    v1::ListShardsRequest request;
    if (!model_.empty()) request.set_parent("models/" + model_);
    const auto response = (*client)->ListShards(request, context.Call());
    if (!response.ok()) return context.NodeError(response.status());
    if (context.json()) {
      Json list = Json::array();
      for (const v1::Shard& shard : response->shards()) list.push_back(ToJson(shard));
      Print(context.out(), list);
      return kOk;
    }
    Table table(
        {"SHARD", "N", "K", "FORMAT", "FAMILY", "DEVICE", "SIZE", "STATE", "VERSION", "HASH"});
    for (const v1::Shard& s : response->shards()) {
      table.Row({s.name(), absl::StrCat(s.n()), absl::StrCat(s.k()), Word(s.format()),
                 Word(s.family()), s.device(), HumanBytes(static_cast<double>(s.bytes())),
                 Word(s.state()), absl::StrCat(s.version()), s.hash().substr(0, 12)});
    }
    table.Print(context.out());
    for (const v1::Shard& s : response->shards()) {
      if (!s.error().empty()) context.out() << s.name() << ": " << s.error() << "\n";
    }
    return kOk;
  }

 private:
  std::string model_;
};

}  // namespace

std::unique_ptr<Command> MakeShards() { return std::make_unique<Shards>(); }

}  // namespace fulcrum::cli
