// The synthetic models as tables of their projections. Sizes are N x K.
// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/weights/synthetic.h"

namespace fulcrum {
namespace {

struct Projection {
  std::string_view name;  // after "layers.N."; whole for the LM head
  Family family;
  WeightFormat format;
  int64_t n, k;
  int q2_block = 64;
};
using enum WeightFormat;

// Layer 0 is a state-space layer, layer 1 an attention layer; sizes that are no multiple of 128
// (or, for q2_0, an odd number of blocks) are there on purpose.
constexpr Projection kSmallSsm[] = {
    {"ssm_in", Family::kSsmIn, kFp8Block128, 1088, 512},
    {"ssm_out", Family::kSsmOut, kFp8Block128, 512, 768},
    {"ffn_gate", Family::kFfnGateUp, kFp8Block128, 1376, 512},
    {"ffn_up", Family::kFfnGateUp, kFp8Block128, 1376, 512},
    {"ffn_down", Family::kFfnDown, kFp8Block128, 512, 1376},
    {"adapter", Family::kOther, kQ2_0, 96, 576},
    {"adapter_wide", Family::kOther, kQ2_0, 64, 640, 128},
};
constexpr Projection kSmallAttention[] = {
    {"attn_q", Family::kAttnQkv, kFp8Block128, 768, 512},
    {"attn_k", Family::kAttnQkv, kFp8Block128, 200, 512},
    {"attn_v", Family::kAttnQkv, kFp8Block128, 200, 512},
    {"attn_o", Family::kAttnO, kFp8Block128, 512, 768},
    {"shared_expert_gate", Family::kSharedExpert, kQ2_0, 320, 512},
    {"shared_expert_up", Family::kSharedExpert, kQ2_0, 320, 512},
    {"shared_expert_down", Family::kSharedExpert, kQ2_0, 512, 320},
};
constexpr Projection kSmallLmHead = {"lm_head", Family::kLmHead, kBf16, 2003, 512};

constexpr int kQwenLayers = 64;
constexpr int kQwenAttentionEvery = 4;
constexpr Projection kQwenFfn[] = {
    {"ffn_gate", Family::kFfnGateUp, kFp8Block128, 17408, 5120},
    {"ffn_up", Family::kFfnGateUp, kFp8Block128, 17408, 5120},
    {"ffn_down", Family::kFfnDown, kFp8Block128, 5120, 17408},
};
constexpr Projection kQwenAttention[] = {
    {"attn_q", Family::kAttnQkv, kFp8Block128, 6144, 5120},
    {"attn_k", Family::kAttnQkv, kFp8Block128, 1024, 5120},
    {"attn_v", Family::kAttnQkv, kFp8Block128, 1024, 5120},
    {"attn_o", Family::kAttnO, kFp8Block128, 5120, 6144},
};
constexpr Projection kQwenSsm[] = {
    {"ssm_in", Family::kSsmIn, kFp8Block128, 16384, 5120},
    {"ssm_out", Family::kSsmOut, kFp8Block128, 5120, 6144},
};
constexpr Projection kQwenLmHead = {"lm_head", Family::kLmHead, kBf16, 248077, 5120};

class ModelBuilder {
 public:
  explicit ModelBuilder(uint64_t seed) : seed_(seed) {}

  // Layer -1 for what is outside the stack.
  void Add(int layer, std::span<const Projection> projections) {
    for (const Projection& p : projections) {
      NamedWeight weight;
      weight.shard = layer < 0 ? std::string(p.name)
                               : absl::StrCat("layers.", layer, ".", std::string(p.name));
      weight.family = p.family;
      weight.layer = layer;
      const WeightSpec spec{
          .name = weight.shard, .format = p.format, .n = p.n, .k = p.k, .q2_block = p.q2_block};
      absl::StatusOr<std::shared_ptr<const WeightSource>> source = SyntheticWeight(spec, seed_);
      if (!source.ok()) {
        status_.Update(source.status());
        continue;
      }
      weight.source = *std::move(source);
      weights_.push_back(std::move(weight));
    }
  }
  absl::StatusOr<std::vector<NamedWeight>> Finish() {
    if (!status_.ok()) return status_;
    return std::move(weights_);
  }

 private:
  const uint64_t seed_;
  absl::Status status_;
  std::vector<NamedWeight> weights_;
};

struct Choice {
  std::set<int> layers;
  bool lm_head = false;
};

std::optional<int> ParseLayer(std::string_view text) {
  int layer = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (error != std::errc() || end != text.data() + text.size() || layer < 0 ||
      layer >= kQwenLayers) {
    return std::nullopt;
  }
  return layer;
}

// "0-3,7,lm_head"
absl::StatusOr<Choice> ParseChoice(std::string_view text) {
  Choice choice;
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  for (const std::string& part : parts) {
    if (part == "lm_head") {
      choice.lm_head = true;
      continue;
    }
    const size_t dash = part.find('-');
    const std::optional<int> first = ParseLayer(std::string_view(part).substr(0, dash));
    const std::optional<int> last =
        dash == part.npos ? first : ParseLayer(std::string_view(part).substr(dash + 1));
    if (!first || !last || *first > *last) {
      return absl::InvalidArgumentError(
          absl::StrFormat("layer choice '%s': expected a layer 0..%d, a range like 0-3, or lm_head",
                          part, kQwenLayers - 1));
    }
    for (int layer = *first; layer <= *last; ++layer) choice.layers.insert(layer);
  }
  return choice;
}

absl::StatusOr<std::vector<NamedWeight>> Qwen27b(const Choice& choice, uint64_t seed) {
  ModelBuilder builder(seed);
  for (const int layer : choice.layers) {
    const bool attention = layer % kQwenAttentionEvery == kQwenAttentionEvery - 1;
    if (attention) {
      builder.Add(layer, kQwenAttention);
    } else {
      builder.Add(layer, kQwenSsm);
    }
    builder.Add(layer, kQwenFfn);
  }
  if (choice.lm_head) builder.Add(-1, {&kQwenLmHead, 1});
  return builder.Finish();
}

}  // namespace

absl::StatusOr<std::vector<NamedWeight>> SyntheticModel(std::string_view model, uint64_t seed) {
  const size_t colon = model.find(':');
  const std::string_view name = model.substr(0, colon);
  const bool chosen = colon != model.npos;
  if (name == "small" && !chosen) {
    ModelBuilder builder(seed);
    builder.Add(0, kSmallSsm);
    builder.Add(1, kSmallAttention);
    builder.Add(-1, {&kSmallLmHead, 1});
    return builder.Finish();
  }
  if (name != "qwen-27b") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "no synthetic model '%s': expected small, qwen-27b, or qwen-27b:LAYERS with "
        "LAYERS like 0-3,7,lm_head",
        model));
  }
  if (chosen) {
    absl::StatusOr<Choice> choice = ParseChoice(model.substr(colon + 1));
    if (!choice.ok()) return choice.status();
    return Qwen27b(*choice, seed);
  }
  Choice all{.layers = {}, .lm_head = true};
  for (int layer = 0; layer < kQwenLayers; ++layer) all.layers.insert(layer);
  return Qwen27b(all, seed);
}

}  // namespace fulcrum
