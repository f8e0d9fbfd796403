// All tensors under a path, over however many files they are spread: the one place that knows about
// directories, indexes and which container a file is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {

struct TensorCatalog {
  std::string path;
  std::string container;            // "safetensors" or "gguf"
  std::vector<std::string> files;   // in the order they were read
  std::vector<TensorInfo> tensors;  // by name, names are unique

  const TensorInfo* Find(std::string_view name) const;
};

absl::StatusOr<TensorCatalog> ReadCatalog(const std::string& path);

}  // namespace fulcrum
