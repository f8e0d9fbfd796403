// What stands beside the weights of a safetensors checkpoint about them: config.json, ModelOpt's
// hf_quant_config.json, and the __metadata__ of a file's own header. GGUF files describe
// themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/weights/layer_count.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {

struct Manifest {
  // Why no F8_E4M3 tensor may be read as E4M3FN with a scale for each 128x128 block: a sentence
  // that names file and field. Empty where nothing speaks against it.
  std::string fp8_refusal;
  std::optional<LayerPromise> layers;

  // Takes what this one does not say itself.
  void Merge(const Manifest& other);
};

enum class ManifestKind {
  kConfig,        // config.json: its quantization sections speak of weights, wherever they are
  kQuantization,  // hf_quant_config.json: all of it does
};

// `where` is the document's name in messages. INVALID_ARGUMENT unless it is a JSON object with
// unique keys; NaN and Infinity, which Python's writer spells out, count as null.
absl::StatusOr<Manifest> ParseManifest(std::string_view json, const std::string& where,
                                       ManifestKind kind);

// Those of a folder, none of which has to be there. A link that leads nowhere is an error.
absl::StatusOr<Manifest> ReadManifests(const std::string& folder, const ReadRule& may_read = {});

// The metadata of a safetensors header, as far as its members have a manifest's names; their values
// are JSON texts. What is none speaks against fp8 weights: it cannot be known what it says.
Manifest ManifestOfMetadata(const std::map<std::string, std::string>& metadata,
                            const std::string& where);

}  // namespace fulcrum
