// fulcrum info: the node, its devices and limits.
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cpp/client.h"

namespace fulcrum::cli {
namespace {

class Info final : public Command {
 public:
  void Declare(Options&) override {}
  int Run(const Context& context) override {
    const auto client = context.Connect();
    if (!client.ok()) return context.InputError(client.status());
    const auto info = (*client)->GetNodeInfo(context.Call());
    if (!info.ok()) return context.NodeError(info.status());
    if (context.json()) {
      Print(context.out(), ToJson(*info));
      return kOk;
    }
    std::ostream& out = context.out();
    out << "node " << info->node() << ", version " << info->version() << ", up "
        << absl::FormatDuration(
               absl::Trunc(absl::Seconds(info->uptime_seconds()), absl::Seconds(1)))
        << (info->draining() ? ", draining" : "") << ", " << info->calls_in_flight()
        << " calls in flight\n"
        << (info->not_serving().empty() ? "" : "not serving: ") << info->not_serving()
        << (info->not_serving().empty() ? "" : "\n") << "default policy "
        << Word(info->default_policy()) << "\n";
    Table table(
        {"DEVICE", "HEALTHY", "RESIDENT", "BUDGET", "CAPABILITIES", "MMA MODEL", "DESCRIPTION"});
    for (const v1::Device& device : info->devices()) {
      table.Row({device.id(), device.healthy() ? "yes" : "no",
                 HumanBytes(static_cast<double>(device.resident_bytes())),
                 device.memory_bytes() == 0
                     ? "unlimited"
                     : HumanBytes(static_cast<double>(device.memory_bytes())),
                 absl::StrJoin(device.capabilities(), ","), Word(device.mma_model()),
                 device.description()});
    }
    table.Print(out);
    const v1::Limits& limits = info->limits();
    out << "limits: " << limits.max_decode_rows() << " decode rows, " << limits.max_prefill_rows()
        << " prefill rows, " << limits.max_shards_per_call() << " shards a call, "
        << HumanBytes(static_cast<double>(limits.max_message_bytes())) << " a message, "
        << limits.max_queue_rows() << " rows or "
        << HumanBytes(static_cast<double>(limits.max_queue_bytes())) << " waiting, "
        << limits.max_stream_calls() << " calls in flight on a stream\n";
    return kOk;
  }
};

}  // namespace

std::unique_ptr<Command> MakeInfo() { return std::make_unique<Info>(); }

}  // namespace fulcrum::cli
