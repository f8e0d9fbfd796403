// A walk over a manifest for everything that speaks of how 8-bit float weights are scaled. Formats
// as their public documentation has them; fields that do not speak of weights are passed over.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/quantization_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {
namespace {

using Json = nlohmann::json;

template <size_t N>
bool OneOf(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr std::string_view kSections[] = {"quantization_config", "compression_config",
                                          "quantization", "hf_quant_config"};
// The size of a weight's blocks; block_structure is compressed-tensors'.
constexpr std::string_view kBlockSizes[] = {"weight_block_size", "block_structure"};
constexpr std::string_view kWeights[] = {"weights", "weight"};
// Parts of a section that speak of other things than weights.
constexpr std::string_view kOtherThings[] = {
    "input_activations", "output_activations", "activations",      "input_tensors",
    "output_tensors",    "kv_cache_scheme",    "kv_cache",         "kv_cache_config",
    "sparsity_config",   "transform_config",   "input_activation", "output_activation"};
constexpr std::string_view kFormats[] = {"e4m3",          "e4m3fn",   "float8_e4m3",
                                         "float8_e4m3fn", "fp8_e4m3", "torch.float8_e4m3fn"};
// ModelOpt's names of one scale a block, and of a mixture that its layers say more about.
constexpr std::string_view kBlockAlgorithms[] = {"fp8_block_scales", "fp8_pb_wo"};
constexpr std::string_view kMixture = "mixed_precision";

std::string Lower(const Json& text) { return absl::AsciiStrToLower(text.get<std::string>()); }

class Walk {
 public:
  // Outside a quantization section.
  void Document(const Json& json, const std::string& path) {
    if (!json.is_structured()) return;
    for (const auto& [key, value] : json.items()) {
      const std::string at = absl::StrCat(path, path.empty() ? "" : ".", key);
      if (OneOf(key, kSections)) {
        Section(value, at);
      } else if (OneOf(key, kBlockSizes)) {
        BlockSize(value, at);
      } else {
        Document(value, at);
      }
    }
  }

  void Section(const Json& json, const std::string& path) {
    if (!json.is_structured()) return;
    for (const auto& [key, value] : json.items()) {
      const std::string at = absl::StrCat(path, path.empty() ? "" : ".", key);
      if (OneOf(key, kOtherThings)) continue;
      if (OneOf(key, kBlockSizes)) {
        BlockSize(value, at);
      } else if (key == "fmt") {
        Format(value, at);
      } else if (key == "quant_algo") {
        Algorithm(value, at);
      } else if (OneOf(key, kWeights) && value.is_object()) {
        Weights(value, at);
      } else {
        Section(value, at);
      }
    }
  }

  // What only other weights are said to be speaks against ours as well.
  std::string Contradiction() const {
    return !contradiction_.empty() || block_scaled_ ? contradiction_ : of_others_;
  }

 private:
  // One scheme of weights. Without type and number of bits it may be ours.
  void Weights(const Json& scheme, const std::string& path) {
    const auto type = scheme.find("type"), bits = scheme.find("num_bits");
    if (type != scheme.end() && !type->is_null() &&
        !(type->is_string() && Lower(*type) == "float")) {
      return Others(absl::StrCat(path, ".type"), "float", *type);
    }
    constexpr int kBits = 8;
    if (bits != scheme.end() && !bits->is_null() && *bits != kBits) {
      return Others(absl::StrCat(path, ".num_bits"), kBits, *bits);
    }
    const auto strategy = scheme.find("strategy");
    if (strategy != scheme.end() && !strategy->is_null() &&
        !(strategy->is_string() && Lower(*strategy) == "block")) {
      Refuse(absl::StrCat(path, ".strategy"), "block", *strategy);
    }
    const auto symmetric = scheme.find("symmetric");
    if (symmetric != scheme.end() && !symmetric->is_null() && *symmetric != true) {
      Refuse(absl::StrCat(path, ".symmetric"), true, *symmetric);
    }
    block_scaled_ = true;
    Section(scheme, path);
  }

  void BlockSize(const Json& size, const std::string& path) {
    const Json expected = Json::array({kFp8Block, kFp8Block});
    const std::string text = absl::StrCat(kFp8Block, "x", kFp8Block);
    if (size.is_null() || size == expected || (size.is_string() && Lower(size) == text)) return;
    Refuse(path, expected, size);
  }

  void Format(const Json& format, const std::string& path) {
    if (format.is_null() || (format.is_string() && OneOf(Lower(format), kFormats))) return;
    Refuse(path, "e4m3", format);
  }

  void Algorithm(const Json& algorithm, const std::string& path) {
    if (algorithm.is_null()) return;
    const std::string name = algorithm.is_string() ? Lower(algorithm) : "";
    if (name == kMixture) return;
    if (OneOf(name, kBlockAlgorithms)) {
      block_scaled_ = true;
    } else if (absl::StartsWith(name, "fp8")) {
      Refuse(path, "FP8_BLOCK_SCALES", algorithm);
    } else {
      Others(path, "FP8_BLOCK_SCALES", algorithm);
    }
  }

  static std::string Text(const std::string& path, const Json& expected, const Json& found) {
    return absl::StrCat(path, " is ",
                        Quoted(found.dump(-1, ' ', true, Json::error_handler_t::replace)),
                        "; only ", expected.dump(), " is served");
  }
  void Refuse(const std::string& path, const Json& expected, const Json& found) {
    if (contradiction_.empty()) contradiction_ = Text(path, expected, found);
  }
  void Others(const std::string& path, const Json& expected, const Json& found) {
    if (of_others_.empty()) of_others_ = Text(path, expected, found);
  }

  std::string contradiction_, of_others_;
  bool block_scaled_ = false;  // some weights are said to be scaled as ours
};

}  // namespace

std::string Fp8Contradiction(const Json& document, bool all) {
  Walk walk;
  if (all) {
    walk.Section(document, "");
  } else {
    walk.Document(document, "");
  }
  return walk.Contradiction();
}

}  // namespace fulcrum
