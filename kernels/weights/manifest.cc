// Manifests found, parsed, and asked what they claim.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "kernels/weights/file_links.h"
#include "kernels/weights/quantization_config.h"
#include "kernels/weights/strict_json.h"

namespace fulcrum {
namespace {

using Json = nlohmann::json;

struct ManifestRow {
  std::string_view file;
  ManifestKind kind;
};
constexpr ManifestRow kManifests[] = {{"config.json", ManifestKind::kConfig},
                                      {"hf_quant_config.json", ManifestKind::kQuantization},
                                      {"quantization_config.json", ManifestKind::kQuantization},
                                      {"quantize_config.json", ManifestKind::kQuantization}};

// The number of decoder layers, in the words of model families.
constexpr std::string_view kLayerCounts[] = {"num_hidden_layers", "n_layer", "n_layers",
                                             "num_layers"};
// Where a configuration keeps that of the decoder: models of several media, and __metadata__.
constexpr std::string_view kNested[] = {"text_config",    "language_config", "llm_config",
                                        "thinker_config", "decoder",         "config",
                                        "model_config"};

// Members of a safetensors header's __metadata__ that are manifests, or sections or fields of one.
constexpr std::string_view kMetadataDocuments[] = {
    "config",       "model_config",   "quantization_config", "compression_config",
    "quantization", "hf_quant_config"};
constexpr std::string_view kMetadataFields[] = {"weight_block_size", "block_structure", "fmt",
                                                "quant_algo"};

template <size_t N>
bool OneOf(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Python writes NaN, Infinity and -Infinity where JSON has no word; time limits of state-space
// layers are such. Only whole values are taken, so that no text becomes JSON that Python would not
// read.
std::string WithoutPythonConstants(std::string_view json) {
  const auto at_any = [json](size_t at, std::string_view characters) {
    return at >= json.size() || characters.find(json[at]) != characters.npos;
  };
  std::string text;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '"') in_string = !in_string;
    text += json[i];
    if (in_string) {
      if (json[i] == '\\' && i + 1 < json.size()) text += json[++i];
      continue;
    }
    if (!at_any(i, " \t\r\n:,[")) continue;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (json.substr(i + 1, word.size()) != word || !at_any(i + 1 + word.size(), " \t\r\n,]}")) {
        continue;
      }
      text += "null";
      i += word.size();
      break;
    }
  }
  return text;
}

std::optional<LayerPromise> LayersIn(const Json& config, const std::string& where) {
  for (const std::string_view key : kNested) {
    const auto it = config.find(key);
    if (it == config.end() || !it->is_object()) continue;
    auto nested = LayersIn(*it, absl::StrCat(where, std::string(key), "."));
    if (nested) return nested;
  }
  for (const std::string_view key : kLayerCounts) {
    const auto it = config.find(key);
    if (it == config.end() || !it->is_number_unsigned()) continue;
    return LayerPromise{.layers = it->get<uint64_t>(),
                        .optional = 0,
                        .source = absl::StrCat(where, std::string(key))};
  }
  return std::nullopt;
}

Manifest ClaimsOf(const Json& document, const std::string& where, ManifestKind kind) {
  Manifest manifest;
  manifest.fp8_refusal = Fp8Contradiction(document, kind == ManifestKind::kQuantization);
  if (!manifest.fp8_refusal.empty()) {
    manifest.fp8_refusal = absl::StrCat(where, ": ", manifest.fp8_refusal);
  }
  if (kind == ManifestKind::kConfig) {
    manifest.layers = LayersIn(document, absl::StrCat(where, ": "));
  }
  return manifest;
}

}  // namespace

void Manifest::Merge(const Manifest& other) {
  if (fp8_refusal.empty()) fp8_refusal = other.fp8_refusal;
  if (!layers) layers = other.layers;
}

absl::StatusOr<Manifest> ParseManifest(std::string_view json, const std::string& where,
                                       ManifestKind kind) {
  const absl::StatusOr<Json> document = ParseStrictJson(WithoutPythonConstants(json));
  if (!document.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", document.status().message()));
  }
  if (!document->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " is not a JSON object"));
  }
  return ClaimsOf(*document, where, kind);
}

absl::StatusOr<Manifest> ReadManifests(const std::string& folder, const ReadRule& may_read) {
  constexpr uint64_t kMostBytes = 16 << 20;
  Manifest all;
  for (const ManifestRow& row : kManifests) {
    const std::string path = absl::StrCat(folder, "/", std::string(row.file));
    if (!NameExists(path)) continue;
    absl::StatusOr<std::string> text = ReadTextFile(path, kMostBytes, may_read);
    if (!text.ok()) return text.status();
    absl::StatusOr<Manifest> manifest = ParseManifest(*text, path, row.kind);
    if (!manifest.ok()) return manifest.status();
    all.Merge(*manifest);
  }
  return all;
}

Manifest ManifestOfMetadata(const std::map<std::string, std::string>& metadata,
                            const std::string& where) {
  const std::string name = absl::StrCat(where, ": __metadata__");
  Json document = Json::object(), fields = Json::object();
  std::string unread;
  const auto add = [&](const std::string& key, const std::string& text, Json& to) {
    absl::StatusOr<Json> value = ParseStrictJson(WithoutPythonConstants(text));
    if (value.ok()) {
      to[key] = *std::move(value);
    } else if (text.starts_with('{') || text.starts_with('[')) {
      unread = absl::StrCat(name, ".", key, ": ", value.status().message());
    } else {
      to[key] = text;  // a bare word
    }
  };
  for (const auto& [key, text] : metadata) {
    if (OneOf(key, kMetadataDocuments) || OneOf(key, kLayerCounts)) {
      add(key, text, document);
    } else if (OneOf(key, kMetadataFields)) {
      add(key, text, fields);
    }
  }
  Manifest manifest = ClaimsOf(document, name, ManifestKind::kConfig);
  manifest.Merge(ClaimsOf(fields, name, ManifestKind::kQuantization));
  if (manifest.fp8_refusal.empty()) manifest.fp8_refusal = unread;
  return manifest;
}

}  // namespace fulcrum
