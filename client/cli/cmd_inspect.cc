// fulcrum inspect: what a checkpoint holds and what a node would serve of it. Offline.
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "kernels/weights/inspect.h"

namespace fulcrum::cli {
namespace {

Json ToJson(const InspectedTensor& tensor) {
  return {{"name", tensor.name},
          {"file", tensor.file},
          {"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"offset", tensor.offset},
          {"bytes", tensor.bytes},
          {"format", tensor.format},
          {"q2_block", tensor.q2_block},
          {"shard", tensor.shard},
          {"family", tensor.shard.empty() ? "" : std::string(Name(tensor.family))},
          {"layer", tensor.layer},
          {"skip_reason", tensor.skip_reason},
          {"broken", tensor.broken},
          {"non_finite", tensor.non_finite}};
}

class InspectFile final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--file,file", &path_, "safetensors or GGUF file, index, or directory");
    options.Required();
    options.Flag("--scan", &scan_, "Read every weight for NaN and infinity (else scales only)");
  }

  int Run(const Context& context) override {
    const auto found = Inspect(path_, scan_ ? Scan::kWeights : Scan::kScales);
    if (!found.ok()) return context.InputError(found.status());
    bool broken = false;
    int64_t served = 0, non_finite = 0;
    for (const InspectedTensor& tensor : found->tensors) {
      broken |= tensor.broken;
      served += !tensor.shard.empty();
      non_finite += !tensor.non_finite.empty();
    }
    if (context.json()) {
      Json tensors = Json::array();
      for (const InspectedTensor& tensor : found->tensors) tensors.push_back(ToJson(tensor));
      Print(context.out(), {{"path", found->path},
                            {"container", found->container},
                            {"files", found->files},
                            {"importable", !broken && non_finite == 0},
                            {"scanned", scan_},
                            {"tensors", std::move(tensors)}});
    } else {
      context.out() << found->path << ": " << found->container << ", " << found->files.size()
                    << " file(s), " << found->tensors.size() << " tensors, " << served
                    << " served as shards";
      if (non_finite > 0) context.out() << ", " << non_finite << " of them with allow_nan only";
      context.out() << "\n";
      Table table({"TENSOR", "DTYPE", "SHAPE", "SIZE", "SERVED AS", "FAMILY", "WHY NOT"});
      for (const InspectedTensor& t : found->tensors) {
        const bool is_shard = !t.shard.empty();
        table.Row({t.name, t.dtype, absl::StrJoin(t.shape, "x"),
                   HumanBytes(static_cast<double>(t.bytes)),
                   is_shard ? absl::StrCat(t.shard, " (", t.format, ")") : "",
                   is_shard ? std::string(Name(t.family)) : "",
                   absl::StrCat(t.broken ? "BROKEN: " : "", t.skip_reason, t.non_finite)});
      }
      table.Print(context.out());
      if (!scan_ && served > 0) {
        context.out() << "weights were not read: --scan finds the NaN codes that loading refuses\n";
      }
    }
    return broken || non_finite > 0 ? kFailed : kOk;
  }

 private:
  std::string path_;
  bool scan_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeInspect() { return std::make_unique<InspectFile>(); }

}  // namespace fulcrum::cli
