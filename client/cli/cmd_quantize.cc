// fulcrum quantize: BF16, F16 or F32 safetensors to FP8 blocks or Q2_0. Offline.
// SPDX-License-Identifier: Apache-2.0
#include <ostream>

#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "kernels/weights/quantize.h"

namespace fulcrum::cli {
namespace {

Json ToJson(const std::vector<SkippedTensor>& tensors) {
  Json list = Json::array();
  for (const SkippedTensor& t : tensors)
    list.push_back({{"tensor", t.tensor}, {"reason", t.reason}});
  return list;
}

class QuantizeFile final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--input,input", &options_.input, "safetensors file, index or directory");
    options.Required();
    options.Add("--output,output", &options_.output, "The file to write");
    options.Required();
    options.Flag("--force", &options_.replace, "Replace an output file that exists");
    options.Choice("--format", &format_, {"fp8", "q2_0"}, "fp8: safetensors; q2_0: GGUF");
    options.Add("--convert", &options_.convert,
                "Shell pattern over tensor names, repeatable (default: every projection but the LM "
                "head)");
  }

  int Run(const Context& context) override {
    options_.target = *ParseWeightFormat(format_);
    const auto report = Quantize(options_);
    if (absl::IsAlreadyExists(report.status())) {
      return context.InputError(options_.output + " exists; --force replaces it");
    }
    if (!report.ok()) return context.InputError(report.status());
    if (context.json()) {
      Print(context.out(), {{"output", options_.output},
                            {"format", format_},
                            {"converted", report->converted},
                            {"kept", ToJson(report->kept)},
                            {"dropped", ToJson(report->dropped)},
                            {"bytes_in", report->bytes_in},
                            {"bytes_out", report->bytes_out}});
      return kOk;
    }
    std::ostream& out = context.out();
    for (const std::string& tensor : report->converted) out << "converted  " << tensor << "\n";
    for (const SkippedTensor& t : report->kept)
      out << "kept       " << t.tensor << ": " << t.reason << "\n";
    for (const SkippedTensor& t : report->dropped)
      out << "dropped    " << t.tensor << ": " << t.reason << "\n";
    out << options_.output << ": " << HumanBytes(static_cast<double>(report->bytes_in)) << " -> "
        << HumanBytes(static_cast<double>(report->bytes_out)) << "\n";
    return kOk;
  }

 private:
  QuantizeOptions options_;
  std::string format_ = "fp8";
};

}  // namespace

std::unique_ptr<Command> MakeQuantize() { return std::make_unique<QuantizeFile>(); }

}  // namespace fulcrum::cli
