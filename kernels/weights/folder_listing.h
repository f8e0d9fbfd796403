// What a folder offers to be read as a checkpoint, by the names in it alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fulcrum {

// Paths in the order of their names; names that begin with a dot are left out.
struct FolderListing {
  std::vector<std::string> safetensors, gguf;
  std::vector<std::string> indexes;  // NAME.safetensors.index.json
};

// PERMISSION_DENIED where the folder cannot be listed.
absl::StatusOr<FolderListing> ListFolder(const std::string& folder);

// The index of the usual name, even if it is a link that leads nowhere; without one, the others.
std::vector<std::string> IndexesOf(const std::string& folder, const FolderListing& listing);

}  // namespace fulcrum
