// All tensors under a path, over however many files they are spread: the one place that knows about
// directories, indexes and which container a file is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/weights/tensor_info.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {

struct TensorCatalog {
  std::string path;
  std::string container;            // "safetensors" or "gguf"
  std::vector<std::string> files;   // in the order they were read, as they are named
  std::vector<TensorInfo> tensors;  // by name, each once; a name in several files is refused

  // OK where the files are one whole model as far as they and their manifests say: every part once,
  // what the index names, the layers that config.json or the GGUF header promises. Else why not,
  // with what is missing or doubled. A model is imported only when this is OK; it does not speak
  // against a tensor that is asked for by its name, which is whole in its own file.
  absl::Status whole;

  const TensorInfo* Find(std::string_view name) const;
};

// Reads a file, an index (NAME.index.json), or a folder: its index where it has one, else all its
// safetensors files or its GGUF model. Names and neighbours are those of the path as it is named;
// links are not resolved. Manifests (config.json, hf_quant_config.json) count wherever they lie
// beside a file, be it the one that is named or one that a link on the way leads to.
// `may_read` is asked before each file and folder is opened, manifests among them.
absl::StatusOr<TensorCatalog> ReadCatalog(const std::string& path, const ReadRule& may_read = {});

}  // namespace fulcrum
