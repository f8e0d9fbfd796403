// The tables of name patterns, and how a name is taken apart to meet them.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/tensor_names.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fulcrum {
namespace {

// What follows "model.layers.N." (Hugging Face) or "blk.N." (GGUF) and precedes ".weight".
struct NameRow {
  std::string_view tensor;
  std::string_view shard;
  Family family;
};

constexpr NameRow kHuggingFace[] = {
    {"self_attn.q_proj", "attn_q", Family::kAttnQkv},
    {"self_attn.k_proj", "attn_k", Family::kAttnQkv},
    {"self_attn.v_proj", "attn_v", Family::kAttnQkv},
    {"self_attn.qkv_proj", "attn_qkv", Family::kAttnQkv},
    {"self_attn.q_a_proj", "attn_q_a", Family::kAttnQkv},
    {"self_attn.q_b_proj", "attn_q_b", Family::kAttnQkv},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a", Family::kAttnQkv},
    {"self_attn.kv_b_proj", "attn_kv_b", Family::kAttnQkv},
    {"self_attn.o_proj", "attn_o", Family::kAttnO},
    {"mlp.gate_proj", "ffn_gate", Family::kFfnGateUp},
    {"mlp.up_proj", "ffn_up", Family::kFfnGateUp},
    {"mlp.gate_up_proj", "ffn_gate_up", Family::kFfnGateUp},
    {"mlp.down_proj", "ffn_down", Family::kFfnDown},
    {"mlp.shared_expert.gate_proj", "shared_expert_gate", Family::kSharedExpert},
    {"mlp.shared_expert.up_proj", "shared_expert_up", Family::kSharedExpert},
    {"mlp.shared_expert.gate_up_proj", "shared_expert_gate_up", Family::kSharedExpert},
    {"mlp.shared_expert.down_proj", "shared_expert_down", Family::kSharedExpert},
    {"mlp.shared_experts.gate_proj", "shared_expert_gate", Family::kSharedExpert},
    {"mlp.shared_experts.up_proj", "shared_expert_up", Family::kSharedExpert},
    {"mlp.shared_experts.gate_up_proj", "shared_expert_gate_up", Family::kSharedExpert},
    {"mlp.shared_experts.down_proj", "shared_expert_down", Family::kSharedExpert},
};

constexpr NameRow kGguf[] = {
    {"attn_q", "attn_q", Family::kAttnQkv},
    {"attn_k", "attn_k", Family::kAttnQkv},
    {"attn_v", "attn_v", Family::kAttnQkv},
    {"attn_qkv", "attn_qkv", Family::kAttnQkv},
    {"attn_q_a", "attn_q_a", Family::kAttnQkv},
    {"attn_q_b", "attn_q_b", Family::kAttnQkv},
    {"attn_kv_a_mqa", "attn_kv_a", Family::kAttnQkv},
    {"attn_kv_b", "attn_kv_b", Family::kAttnQkv},
    {"attn_output", "attn_o", Family::kAttnO},
    {"ssm_in", "ssm_in", Family::kSsmIn},
    {"ssm_ba", "ssm_in_ba", Family::kSsmIn},
    {"ssm_out", "ssm_out", Family::kSsmOut},
    {"ffn_gate", "ffn_gate", Family::kFfnGateUp},
    {"ffn_up", "ffn_up", Family::kFfnGateUp},
    {"ffn_down", "ffn_down", Family::kFfnDown},
    {"ffn_gate_shexp", "shared_expert_gate", Family::kSharedExpert},
    {"ffn_up_shexp", "shared_expert_up", Family::kSharedExpert},
    {"ffn_down_shexp", "shared_expert_down", Family::kSharedExpert},
};

// Modules of a state-space layer; their in_proj may be split (in_proj_qkvz, in_proj_ba, ...).
constexpr std::string_view kSsmModules[] = {"linear_attn.", "mamba.", "mixer.", "ssm."};

// Where a decoder's layers live. Longer prefixes (a vision tower's, say) are not the decoder.
constexpr std::string_view kLayerPrefixes[] = {"model.layers.",
                                               "layers.",
                                               "model.language_model.layers.",
                                               "language_model.model.layers.",
                                               "language_model.layers.",
                                               "backbone.layers."};
constexpr std::string_view kGgufLayerPrefix = "blk.";

constexpr std::string_view kLmHeads[] = {"lm_head", "model.lm_head", "language_model.lm_head",
                                         "output"};

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes "12." from the front.
std::optional<int> ConsumeLayer(std::string_view& text) {
  int layer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  const auto digits = static_cast<size_t>(end - text.data());
  if (error != std::errc() || digits >= text.size() || text[digits] != '.' || text[0] == '-') {
    return std::nullopt;
  }
  text.remove_prefix(digits + 1);
  return layer;
}

template <size_t N>
const NameRow* Find(const NameRow (&rows)[N], std::string_view tensor) {
  const auto* row = std::find_if(std::begin(rows), std::end(rows),
                                 [&](const NameRow& r) { return r.tensor == tensor; });
  return row == std::end(rows) ? nullptr : row;
}

// What the name itself rules out, apart from the layer it is in.
std::string_view NotAProjection(std::string_view stem) {
  for (size_t begin = 0; begin <= stem.size();) {
    const size_t end = std::min(stem.find('.', begin), stem.size());
    const std::string_view part = stem.substr(begin, end - begin);
    if (part == "experts" || part.ends_with("_exps")) return "routed expert";
    if (part.find("norm") != part.npos) return "norm";
    if (part.find("embd") != part.npos || part.find("embed") != part.npos || part == "wte" ||
        part == "wpe") {
      return "embedding";
    }
    if (part.find("conv") != part.npos) return "convolution";
    begin = end + 1;
  }
  return {};
}

bool MapHuggingFace(std::string_view rest, TensorRole& role) {
  if (const NameRow* row = Find(kHuggingFace, rest)) {
    role.shard = absl::StrCat("layers.", role.layer, ".", std::string(row->shard));
    role.family = row->family;
    return true;
  }
  for (const std::string_view module : kSsmModules) {
    std::string_view part = rest;
    if (!ConsumePrefix(part, module)) continue;
    const bool in = ConsumePrefix(part, "in_proj");
    if (in && (part.empty() || part.front() == '_') && part.find('.') == part.npos) {
      role.shard = absl::StrCat("layers.", role.layer, ".ssm_in", std::string(part));
      role.family = Family::kSsmIn;
      return true;
    }
    if (part == "out_proj") {
      role.shard = absl::StrCat("layers.", role.layer, ".ssm_out");
      role.family = Family::kSsmOut;
      return true;
    }
  }
  return false;
}

}  // namespace

TensorRole RoleOf(std::string_view tensor) {
  constexpr std::string_view kWeight = ".weight";
  TensorRole role;
  if (tensor.ends_with("_scale_inv")) {
    role.skip = "scale grid of another tensor";
    return role;
  }
  if (!tensor.ends_with(kWeight)) {
    const std::string_view reason = NotAProjection(tensor);
    role.skip = reason.empty() ? "not named *.weight" : std::string(reason);
    return role;
  }
  const std::string_view stem = tensor.substr(0, tensor.size() - kWeight.size());
  if (const std::string_view reason = NotAProjection(stem); !reason.empty()) {
    role.skip = std::string(reason);
    return role;
  }
  if (std::find(std::begin(kLmHeads), std::end(kLmHeads), stem) != std::end(kLmHeads)) {
    role.shard = "lm_head";
    role.family = Family::kLmHead;
    return role;
  }
  std::string_view rest = stem;
  const bool gguf = ConsumePrefix(rest, kGgufLayerPrefix);
  const bool layered =
      gguf || std::any_of(std::begin(kLayerPrefixes), std::end(kLayerPrefixes),
                          [&](std::string_view prefix) { return ConsumePrefix(rest, prefix); });
  if (const std::optional<int> layer = layered ? ConsumeLayer(rest) : std::nullopt) {
    role.layer = *layer;
    if (!gguf && MapHuggingFace(rest, role)) return role;
    const NameRow* row = gguf ? Find(kGguf, rest) : nullptr;
    if (row != nullptr) role.family = row->family;
    role.shard =
        absl::StrCat("layers.", role.layer, ".", std::string(row != nullptr ? row->shard : rest));
    return role;
  }
  role.shard = std::string(stem);
  return role;
}

}  // namespace fulcrum
