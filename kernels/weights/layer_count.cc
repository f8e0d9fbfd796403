// Layer numbers out of tensor names, against a promise.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/layer_count.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/weights/tensor_names.h"
#include "kernels/weights/whole_numbers.h"

namespace fulcrum {
namespace {

// Numbered layers under one prefix ("model.layers", "blk", "vision_tower.blocks").
using Stacks = std::map<std::string_view, std::set<uint64_t>>;

// The first part of a name that is a number, with what stands before it.
std::optional<std::pair<std::string_view, uint64_t>> LayerOf(std::string_view name) {
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const std::optional<uint64_t> layer = WholeNumber(part);
    if (layer && begin > 0) return std::pair(name.substr(0, begin - 1), *layer);
    begin = end + 1;
  }
  return std::nullopt;
}

// Where import looks for the decoder's layers (tensor_names.h).
bool IsDecoder(std::string_view prefix) {
  return RoleOf(absl::StrCat(std::string(prefix), ".0.x.weight")).layer == 0;
}

// Encoders of other media have layers of their own, which say nothing about the decoder's.
bool OfAnotherMedium(std::string_view prefix) {
  for (const std::string_view word : {"vision", "visual", "audio"}) {
    if (prefix.find(word) != prefix.npos) return true;
  }
  return prefix.starts_with("v.") || prefix.starts_with("a.") || prefix.starts_with("mm.");
}

// The decoder's layers under any of its prefixes; where no name is a known decoder's, every stack
// by itself.
Stacks StacksOf(const std::vector<std::string_view>& tensors) {
  Stacks stacks;
  std::set<uint64_t> decoder;
  std::map<std::string_view, bool> known;
  for (const std::string_view tensor : tensors) {
    const auto layer = LayerOf(tensor);
    if (!layer || OfAnotherMedium(layer->first)) continue;
    const auto [it, is_new] = known.try_emplace(layer->first);
    if (is_new) it->second = IsDecoder(layer->first);
    (it->second ? decoder : stacks[layer->first]).insert(layer->second);
  }
  if (decoder.empty()) return stacks;
  return {{"", std::move(decoder)}};
}

}  // namespace

absl::Status CheckLayers(const std::vector<std::string_view>& tensors,
                         const LayerPromise& promise) {
  const Stacks stacks = StacksOf(tensors);
  // A single layer needs no number in its tensors' names.
  if (stacks.empty() && promise.layers <= 1) return absl::OkStatus();
  const uint64_t needed = promise.layers - std::min(promise.layers, promise.optional);
  std::string missing = MissingNumbers({}, 0, needed);
  size_t most = 0;
  for (const auto& [prefix, layers] : stacks) {
    const std::string lacks = MissingNumbers(layers, 0, needed);
    if (lacks.empty()) return absl::OkStatus();
    if (layers.size() <= most) continue;
    most = layers.size();
    missing = lacks;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s promises %d layers, and no tensor belongs to layer %s: this is a part of "
                      "a model. Get the "
                      "rest; tensors of the layers that are there can be loaded by name",
                      promise.source, promise.layers, missing));
}

}  // namespace fulcrum
