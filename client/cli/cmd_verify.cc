// fulcrum verify: does this weight file, with these activations, give these values? Computed with
// the node's own arms, judged by the node's own budget, and compared bit for bit with the oracle.
// Offline.
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/payload.h"

namespace fulcrum::cli {
namespace {

class Verify final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("--file", &file_, "safetensors or GGUF file, index, or directory");
    options.Required();
    options.Add("--tensor", &tensor_, "Its name in the file");
    options.Required();
    options.Add("--activations", &activations_, "Raw row-major [M, K]: .bf16, .f16 or .f32");
    options.Required();
    options.Add("--expect", &expect_, "Raw float64 [M, N]: activations times dequantised weights");
    options.Required();
    options.Choice("--policy", &policy_, {"exact", "batch_invariant", "fastest"},
                   "Which arms may compute it");
    options.Add("--lever", &levers_, "NAME=VALUE, repeatable; all others keep their defaults");
    options.Choice("--output-type", &output_type_, {"f32", "bf16"}, "What is judged");
    options.Choice("--step", &step_, {"decode", "prefill"}, "Default: decode up to 32 rows");
    options.Add("--family", &family_, "Projection family (default: by the tensor's name)");
    options.Add("--backend", &request_.backend, "cpu, cuda or auto");
    options.Add("--threads", &request_.threads, "CPU threads (0: all)");
    options.Flag("--skip-oracle", &skip_oracle_, "Budget only: the oracle is plain loops and slow");
  }

  int Run(const Context& context) override {
    const absl::StatusOr<int> exit = Judge(context);
    return exit.ok() ? *exit : context.InputError(exit.status());
  }

 private:
  absl::StatusOr<int> Judge(const Context& context) {
    auto weight = OpenWeight(file_, tensor_);
    if (!weight.ok()) return weight.status();
    const WeightSource& source = *weight->source;
    const WeightSpec& spec = source.spec();
    const auto activations = ReadActivations(activations_, spec.k);
    if (!activations.ok()) return activations.status();
    const auto expected = ReadF64(expect_, activations->rows * spec.n);
    if (!expected.ok()) return expected.status();
    if (absl::Status status = FillRequest(activations->rows, &*weight); !status.ok()) return status;

    const std::vector<uint16_t> x = ToBf16(*activations);
    const int m = static_cast<int>(activations->rows);
    const auto product = Compute(*weight, x, m, request_);
    if (!product.ok()) return product.status();
    const auto verdict = Grade(source, x, m, *expected, *product, request_.output_type);
    if (!verdict.ok()) return verdict.status();
    int64_t mismatches = -1;
    if (!skip_oracle_) {
      const auto counted = CountOracleMismatches(source, x, m, *product, request_.output_type);
      if (!counted.ok()) return counted.status();
      mismatches = *counted;
    }
    const bool pass = verdict->ok && mismatches <= 0;
    const int64_t max_ulp = MaxUlpOfLargeValues(*expected, m, *product, request_.output_type);
    Report(context, spec, m, *product, *verdict, max_ulp, mismatches, pass);
    return pass ? kOk : kFailed;
  }

  absl::Status FillRequest(int64_t rows, OfflineWeight* weight) {
    for (const std::string& text : levers_) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("--lever: expected NAME=VALUE, got \"", text, "\""));
      }
      absl::Status status = request_.levers.Set(text.substr(0, equals), text.substr(equals + 1));
      if (!status.ok()) return status;
    }
    if (!family_.empty()) {
      const std::optional<Family> family = ParseFamily(family_);
      if (!family) {
        return absl::InvalidArgumentError(absl::StrCat("--family: no family \"", family_, "\""));
      }
      weight->family = *family;
    }
    request_.policy = *ParsePolicy(policy_);
    request_.output_type = *ParseDType(output_type_);
    request_.step = !step_.empty()           ? *ParseStep(step_)
                    : rows <= kMaxDecodeRows ? Step::kDecode
                                             : Step::kPrefill;
    return absl::OkStatus();
  }

  void Report(const Context& context, const WeightSpec& spec, int m, const Product& product,
              const numerics::Verdict& verdict, int64_t max_ulp, int64_t mismatches,
              bool pass) const {
    if (context.json()) {
      Json json = {{"verdict", pass ? "pass" : "fail"},
                   {"tensor", spec.name},
                   {"format", std::string(Name(spec.format))},
                   {"rows", m},
                   {"n", spec.n},
                   {"k", spec.k},
                   {"arm", product.arm},
                   {"class", std::string(Name(product.numerics))},
                   {"device", product.device},
                   {"output_type", output_type_},
                   {"elements", verdict.elements},
                   {"within_budget", verdict.ok},
                   {"over_budget", verdict.over},
                   {"max_ulp", max_ulp},
                   {"max_abs", verdict.max_abs},
                   {"relative_rms", verdict.relative_rms},
                   {"worst",
                    {{"row", verdict.worst_row},
                     {"col", verdict.worst_col},
                     {"expected", verdict.worst_reference},
                     {"actual", verdict.worst_actual}}}};
      json["oracle_mismatches"] = mismatches < 0 ? Json() : Json(mismatches);
      Print(context.out(), json);
      return;
    }
    context.out() << absl::StrFormat(
        "%s (%s, N = %d, K = %d), M = %d\narm %s, class %s, %s\nelements %d, over budget %d, max "
        "ULP %d (of values of at least their row's RMS), relative RMS %.3g\nworst at row %d, "
        "column %d: expected %.9g, got %.9g\n",
        spec.name, Name(spec.format), spec.n, spec.k, m, product.arm, Name(product.numerics),
        product.device, verdict.elements, verdict.over, max_ulp, verdict.relative_rms,
        verdict.worst_row, verdict.worst_col, verdict.worst_reference, verdict.worst_actual);
    context.out() << (mismatches < 0 ? std::string("oracle: not compared\n")
                      : mismatches == 0
                          ? std::string("oracle: every bit equal\n")
                          : absl::StrFormat("oracle: %d elements differ in bits\n", mismatches))
                  << (pass ? "PASS" : "FAIL") << (verdict.ok ? "" : ": outside the budget")
                  << (mismatches > 0 ? ": not the bits of its class" : "") << "\n";
  }

  std::string file_, tensor_, activations_, expect_;
  std::string policy_ = "exact", output_type_ = "f32", step_, family_;
  std::vector<std::string> levers_;
  bool skip_oracle_ = false;
  ProductRequest request_;
};

}  // namespace

std::unique_ptr<Command> MakeVerify() { return std::make_unique<Verify>(); }

}  // namespace fulcrum::cli
