// fulcrum replay: runs a bundle of wrong outputs again, here, and says whether the fault shows
// again. Offline. Exit 1 when the arm's outputs are wrong here too, 3 when it is not here to run.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/json.h"
#include "client/cli/offline.h"
#include "client/cli/text.h"
#include "kernels/backend_factory.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/bundle.h"
#include "kernels/numerics/oracle.h"
#include "kernels/weights/slice.h"
#include "kernels/weights/synthetic.h"

namespace fulcrum::cli {
namespace {

using numerics::Bundle;

// One set of outputs against what they should be.
struct Judged {
  int64_t wrong_bits = -1;  // against the reference of the class; -1: it has none
  numerics::Verdict budget;
  bool right() const { return wrong_bits <= 0 && budget.ok; }
};

int64_t CountDifferent(const std::vector<float>& a, const std::vector<float>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    count += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  }
  return count;
}

class Replay final : public Command {
 public:
  void Declare(Options& options) override {
    options.Add("bundle", &path_, "Written by a node under audit.bundle_folder");
    options.Required();
    options.Add("--file", &file_, "Where the weight is (default: where the node had it from)");
    options.Add("--tensor", &tensor_, "Its name in the file (default: as on the node)");
    options.Add("--row", &slice_.row, "For a shard that is a slice: its first row,");
    options.Add("--rows", &slice_.rows, "its rows (-1: to the end),");
    options.Add("--column", &slice_.column, "its first column");
    options.Add("--columns", &slice_.columns, "and its columns (-1: to the end)");
    options.Add("--backend", &backend_, "cpu, cuda or auto");
    options.Add("--threads", &threads_, "CPU threads (0: all)");
  }

  int Run(const Context& context) override {
    const absl::StatusOr<int> exit = Judge(context);
    return exit.ok() ? *exit : context.InputError(exit.status());
  }

 private:
  absl::StatusOr<std::shared_ptr<const WeightSource>> Weight(const Bundle& bundle) const {
    constexpr char kSynthetic[] = "synthetic:";
    std::shared_ptr<const WeightSource> source;
    uint64_t seed = 0;
    if (file_.empty() && bundle.origin.rfind(kSynthetic, 0) == 0 &&
        absl::SimpleAtoi(bundle.origin.substr(sizeof(kSynthetic) - 1), &seed)) {
      auto made = SyntheticWeight(
          {.name = bundle.tensor, .format = bundle.format, .n = bundle.n, .k = bundle.k}, seed);
      if (!made.ok()) return made.status();
      source = *std::move(made);
    } else {
      auto opened = OpenWeight(file_.empty() ? bundle.origin : file_,
                               tensor_.empty() ? bundle.tensor : tensor_);
      if (!opened.ok()) return opened.status();
      auto sliced = Slice(std::move(opened->source), slice_);
      if (!sliced.ok()) return sliced.status();
      source = *std::move(sliced);
    }
    std::string hash;
    if (absl::Status s = ContentHash(*source, &hash); !s.ok()) return s;
    if (hash == bundle.shard_hash) return source;
    return absl::FailedPreconditionError(absl::StrCat(
        source->origin(), ", ", source->spec().name, " has the content hash ", hash,
        ", the bundle's weight has ", bundle.shard_hash,
        "; --file and --tensor name another weight, --row and --column a slice of it"));
  }

  static absl::StatusOr<std::vector<float>> Reference(NumericsClass numerics, const Bundle& bundle,
                                                      const WeightSource& source, bool round) {
    std::vector<float> out(static_cast<size_t>(bundle.rows * bundle.columns));
    if (absl::Status s = numerics::ReferenceProduct(numerics, source, bundle.column, bundle.columns,
                                                    bundle.activations, bundle.rows, out);
        !s.ok()) {
      return s;
    }
    for (float& value : out) {
      if (!round) break;
      value = bundle.output_type == DType::kF32 ? CanonicalF32(value) : Bf16ToF32(F32ToBf16(value));
    }
    return out;
  }

  static Judged Against(const std::vector<float>& outputs, const Bundle& bundle,
                        const std::vector<float>& exact, const std::vector<float>* of_class) {
    Judged judged;
    if (of_class != nullptr) judged.wrong_bits = CountDifferent(outputs, *of_class);
    const std::vector<double> reference(exact.begin(), exact.end());
    judged.budget = bundle.numerics == NumericsClass::kW8A8
                        ? numerics::CheckW8A8Budget(reference, outputs, bundle.rows, bundle.columns)
                        : numerics::CheckBudget(reference, outputs, bundle.rows, bundle.columns,
                                                bundle.k, bundle.output_type);
    return judged;
  }

  // The bundle's columns of the arm's whole product; nothing when the backend has no such arm.
  absl::StatusOr<std::vector<float>> Again(const Bundle& bundle, const WeightSource& source,
                                           std::string* device) const {
    const bool w8a8 = bundle.numerics == NumericsClass::kW8A8;
    auto backends =
        MakeBackends(backend_, {.cpu_threads = threads_, .w8a8 = w8a8, .w8a8_library = w8a8});
    if (!backends.ok()) return backends.status();
    Backend& backend = *backends->front();
    *device = backend.device().id;
    std::vector<float> out;
    for (const Arm& arm : backend.ladder()) {
      if (arm.name != bundle.arm) continue;
      const auto product =
          RunArm(backend, arm, source, bundle.activations, bundle.rows, bundle.output_type);
      if (!product.ok()) return product.status();
      for (int64_t row = 0; row < bundle.rows; ++row) {
        const auto from = product->values.begin() + row * bundle.n + bundle.column;
        out.insert(out.end(), from, from + bundle.columns);
      }
      return out;
    }
    return out;
  }

  absl::StatusOr<int> Judge(const Context& context) {
    const absl::StatusOr<Bundle> bundle = numerics::ReadBundle(path_);
    if (!bundle.ok()) return bundle.status();
    const auto source = Weight(*bundle);
    if (!source.ok()) return source.status();
    const auto exact = Reference(NumericsClass::kExact, *bundle, **source, /*round=*/false);
    if (!exact.ok()) return exact.status();
    absl::StatusOr<std::vector<float>> of_class = std::vector<float>();
    const bool has_reference = bundle->numerics != NumericsClass::kW8A8;
    if (has_reference) of_class = Reference(bundle->numerics, *bundle, **source, /*round=*/true);
    if (!of_class.ok()) return of_class.status();
    const std::vector<float>* const expected = has_reference ? &*of_class : nullptr;

    const std::vector<float> served = Widen(bundle->outputs, bundle->output_type);
    std::string device;
    const auto again = Again(*bundle, **source, &device);
    if (!again.ok()) return again.status();
    const Judged then = Against(served, *bundle, *exact, expected);
    const bool ran = !again->empty();
    const Judged now = ran ? Against(*again, *bundle, *exact, expected) : Judged{};
    Report(context, *bundle, then, ran ? &now : nullptr, device,
           ran ? CountDifferent(served, *again) : -1);
    if (!ran) return kNotRun;
    return now.right() ? kOk : kFailed;
  }

  static void Report(const Context& context, const Bundle& bundle, const Judged& then,
                     const Judged* now, const std::string& device, int64_t changed) {
    const auto bits = [](const Judged& judged) {
      return judged.wrong_bits < 0 ? Json() : Json(judged.wrong_bits);
    };
    const int64_t outputs = bundle.rows * bundle.columns;
    const char* const verdict = now == nullptr  ? "not run"
                                : !now->right() ? "wrong again"
                                : !then.right() ? "right this time"
                                                : "right then and now";
    if (context.json()) {
      Json json = {{"verdict", verdict},
                   {"found_by", bundle.found_by},
                   {"detail", bundle.detail},
                   {"shard", bundle.shard},
                   {"arm", bundle.arm},
                   {"class", std::string(Name(bundle.numerics))},
                   {"lever_epoch", bundle.lever_epoch},
                   {"outputs", outputs},
                   {"served", {{"wrong_bits", bits(then)}, {"within_budget", then.budget.ok}}}};
      if (now != nullptr) {
        json["again"] = {{"device", device},
                         {"wrong_bits", bits(*now)},
                         {"within_budget", now->budget.ok},
                         {"differ_from_served", changed}};
      }
      Print(context.out(), json);
      return;
    }
    const auto line = [&](const char* what, const Judged& judged) {
      return absl::StrFormat(
          "%s: %s; %s\n", what,
          judged.wrong_bits < 0 ? std::string("its class has no reference bits")
                                : absl::StrFormat("%d of %d outputs have not the bits of its class",
                                                  judged.wrong_bits, outputs),
          judged.budget.Describe());
    };
    context.out() << absl::StrFormat(
        "%s, found by %s on %s at %s\n%s\narm %s, class %s, lever epoch %d, %d rows, columns from "
        "%d\n",
        OneLine(bundle.shard), OneLine(bundle.found_by), OneLine(bundle.device),
        OneLine(bundle.time), OneLine(bundle.detail), OneLine(bundle.arm), Name(bundle.numerics),
        bundle.lever_epoch, bundle.rows, bundle.column);
    context.out() << line("served", then);
    if (now != nullptr) {
      context.out() << line(absl::StrCat("again on ", device).c_str(), *now)
                    << absl::StrFormat("%d outputs differ from those served\n", changed);
    } else {
      context.out() << device << " has no arm " << OneLine(bundle.arm)
                    << ": --backend names another\n";
    }
    context.out() << verdict << "\n";
  }

  std::string path_, file_, tensor_, backend_ = "cpu";
  SliceRange slice_;
  int threads_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeReplay() { return std::make_unique<Replay>(); }

}  // namespace fulcrum::cli
