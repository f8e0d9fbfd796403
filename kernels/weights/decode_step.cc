// Sorting weights into the calls of a decode step. See decode_step.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/decode_step.h"

#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "absl/strings/match.h"

namespace fulcrum {
namespace {

// N of "layers.N." in the name, -1 where there is none.
int LayerOf(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = name.rfind(kLayers);
  if (at == name.npos) return -1;
  int layer = -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + at + kLayers.size(), end, layer);
  return error == std::errc() && stop != end && *stop == '.' && layer >= 0 ? layer : -1;
}

// The place of a call in its layer; nothing for weights whose place is not known.
std::optional<int> PlaceOf(const StepWeight& weight) {
  switch (weight.family) {
    case Family::kAttnQkv:
      return 0;
    case Family::kAttnO:
      return 1;
    case Family::kSsmIn:
      return 2;
    case Family::kSsmOut:
      return 3;
    case Family::kFfnGateUp:
      return 4;
    case Family::kFfnDown:
      return 5;
    case Family::kSharedExpert:
      // One family for all three: only the name says which of them reads the others' outputs.
      return absl::EndsWith(weight.name, "_down") ? 7 : 6;
    case Family::kLmHead:
      return 8;
    case Family::kOther:
      break;
  }
  return std::nullopt;
}

}  // namespace

DecodeStepPlan PlanDecodeStep(std::span<const StepWeight> weights, DecodeStepScope scope) {
  DecodeStepPlan plan;
  // By layer, place and K, which siblings share by definition. The LM head is behind every layer.
  std::map<int, std::map<std::tuple<int, int64_t>, DecodeCall>> layers;
  std::map<int64_t, DecodeCall> lm_head;
  std::map<int, std::vector<std::string>> unplaced;
  for (const StepWeight& weight : weights) {
    const int layer = LayerOf(weight.name);
    const std::optional<int> place = PlaceOf(weight);
    const bool head = weight.family == Family::kLmHead;
    if (!place || (layer < 0 && !head)) {
      unplaced[layer].push_back(weight.name);
      continue;
    }
    DecodeCall& call = head ? lm_head[weight.k] : layers[layer][{*place, weight.k}];
    call.phase = PhaseOf(weight.family);
    call.layer = head ? -1 : layer;
    call.k = weight.k;
    call.weights.push_back(weight);
  }
  for (auto& [layer, calls] : layers) {
    if (scope.layers > 0 && plan.layers == scope.layers) break;
    ++plan.layers;
    for (auto& [place, call] : calls) plan.calls.push_back(std::move(call));
    const auto& left = unplaced[layer];
    plan.left_out.insert(plan.left_out.end(), left.begin(), left.end());
  }
  if (scope.lm_head) {
    for (auto& [k, call] : lm_head) plan.calls.push_back(std::move(call));
  }
  return plan;
}

}  // namespace fulcrum
