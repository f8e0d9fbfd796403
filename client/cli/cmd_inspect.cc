// fulcrum inspect: what a checkpoint holds and what a node would serve of it. Offline.
// Exit status: 0 when a node serves what the table says, 1 when it refuses the checkpoint (a broken
// projection, weights that are not finite without --allow-nan, nothing to serve, no room), 2 when
// the checkpoint cannot be read.
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "kernels/backend_factory.h"
#include "kernels/placement.h"
#include "kernels/weights/inspect.h"
#include "kernels/weights/skipped_tensor.h"

namespace fulcrum::cli {
namespace {

Json ToJson(const std::optional<ScaleCounts>& counts) {
  if (!counts) return nullptr;
  return {{"count", counts->scales},
          {"zero", counts->zero},
          {"negative", counts->negative},
          {"subnormal", counts->subnormal}};
}

Json ToJson(const InspectedTensor& tensor) {
  return {{"name", tensor.name},
          {"file", tensor.file},
          {"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"offset", tensor.offset},
          {"bytes", tensor.bytes},
          {"format", tensor.format},
          {"q2_block", tensor.q2_block},
          {"verdict", std::string(Name(tensor.fate))},
          {"shard", tensor.shard},
          {"family", tensor.shard.empty() ? "" : std::string(Name(tensor.family))},
          {"layer", tensor.layer},
          // Why it is not served; what allow_nan would let through is in non_finite alone.
          {"skip_reason", tensor.non_finite.empty() ? tensor.why : ""},
          {"broken", tensor.fate == Fate::kRefused && tensor.non_finite.empty()},
          {"non_finite", tensor.non_finite},
          {"scales", ToJson(tensor.scales)}};
}

// "2 of 16 scales zero, 1 negative"; empty where there is nothing to say.
std::string ScaleText(const std::optional<ScaleCounts>& counts) {
  std::string text;
  const auto add = [&](int64_t count, const char* what) {
    if (count == 0) return;
    absl::StrAppend(&text, text.empty() ? "" : ", ", count,
                    text.empty() ? absl::StrCat(" of ", counts->scales, " scales ") : " ", what);
  };
  if (!counts) return text;
  add(counts->zero, "zero");
  add(counts->negative, "negative");
  add(counts->subnormal, "subnormal");
  return text;
}

std::string Remark(const InspectedTensor& tensor) {
  std::vector<std::string> parts;
  const std::string verdict = tensor.fate == Fate::kRefused ? "REFUSED: " : "";
  if (!tensor.why.empty()) {
    parts.push_back(absl::StrCat(verdict, OneLine(tensor.why)));
  } else if (!tensor.non_finite.empty()) {
    parts.push_back(absl::StrCat("with allow_nan only: ", OneLine(tensor.non_finite)));
  }
  if (const std::string scales = ScaleText(tensor.scales); !scales.empty()) parts.push_back(scales);
  return absl::StrJoin(parts, "; ");
}

// Whether all that is served has room on a CPU with this budget.
absl::Status CheckRoom(const Inspection& found, int64_t budget) {
  const auto backends = MakeBackends("cpu", {.cpu_threads = 1, .memory_budget_bytes = budget});
  if (!backends.ok()) return backends.status();
  std::vector<PlacedWeight> weights;
  for (const NamedWeight& served : found.served) {
    weights.push_back({.name = served.shard,
                       .spec = served.source->spec(),
                       .device = "",
                       .group = "",
                       .status = absl::OkStatus(),
                       .placed = ""});
  }
  const Backend* const device = backends->front().get();
  return PlaceAll({&device, 1}, weights);
}

class InspectFile final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--file,file", &path_, "safetensors or GGUF file, index, or directory");
    options.Required();
    options.Flag("--scan", &scan_,
                 "Read every weight for NaN and infinity, and the scales of q2_0 (else those of "
                 "fp8 only)");
    options.Flag("--allow-nan", &allow_nan_, "Judge as a node does that is given allow_nan");
    options.Add("--memory-budget", &budget_,
                "Bytes for resident weights: refuse what a node with a CPU has no room for");
  }

  int Run(const Context& context) override {
    if (budget_ && *budget_ <= 0) {
      return context.InputError(
          absl::StrCat("--memory-budget: ", *budget_, "; expected 1 or more"));
    }
    auto found = Inspect(path_, scan_ ? Scan::kWeights : Scan::kScales, allow_nan_);
    if (!found.ok()) return context.InputError(found.status());
    if (budget_) found->refusal.Update(CheckRoom(*found, *budget_));
    if (context.json()) {
      PrintJson(context, *found);
    } else {
      PrintTable(context.out(), *found);
    }
    return found->refusal.ok() ? kOk : kFailed;
  }

 private:
  void PrintJson(const Context& context, const Inspection& found) const {
    Json tensors = Json::array();
    for (const InspectedTensor& tensor : found.tensors) tensors.push_back(ToJson(tensor));
    Print(context.out(), {{"path", found.path},
                          {"container", found.container},
                          {"files", found.files},
                          {"importable", found.refusal.ok()},
                          {"refusal", std::string(found.refusal.message())},
                          {"scanned", scan_},
                          {"tensors", std::move(tensors)}});
  }

  void PrintTable(std::ostream& out, const Inspection& found) const {
    std::vector<SkippedTensor> skipped;
    for (const InspectedTensor& tensor : found.tensors) {
      if (tensor.fate == Fate::kSkipped) skipped.push_back({tensor.name, tensor.why});
    }
    const size_t refused = found.tensors.size() - found.served.size() - skipped.size();
    out << found.path << ": " << found.container << ", " << found.files.size() << " file(s), "
        << found.tensors.size() << " tensors: " << found.served.size() << " served as shards, "
        << SkipSummary(skipped);
    if (refused > 0) out << "; " << refused << " REFUSED";
    out << "\n";
    Table table({"TENSOR", "DTYPE", "SHAPE", "SIZE", "SERVED AS", "FAMILY", "REMARKS"});
    for (const InspectedTensor& t : found.tensors) {
      const bool is_shard = !t.shard.empty();
      table.Row({OneLine(t.name), OneLine(t.dtype), absl::StrJoin(t.shape, "x"),
                 HumanBytes(static_cast<double>(t.bytes)),
                 is_shard ? absl::StrCat(t.shard, " (", t.format, ")") : "",
                 is_shard ? std::string(Name(t.family)) : "", Remark(t)});
    }
    table.Print(out);
    if (!found.refusal.ok()) {
      out << "a node refuses it: " << OneLine(std::string(found.refusal.message())) << "\n";
    } else if (!scan_) {
      out << "weights were not read: --scan finds the NaN codes that loading refuses\n";
    }
  }

  std::string path_;
  bool scan_ = false, allow_nan_ = false;
  std::optional<int64_t> budget_;
};

}  // namespace

std::unique_ptr<Command> MakeInspect() { return std::make_unique<InspectFile>(); }

}  // namespace fulcrum::cli
