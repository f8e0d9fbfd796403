// Names sorted by what they end on.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/folder_listing.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "kernels/weights/file_links.h"
#include "kernels/weights/safetensors_index.h"

namespace fulcrum {
namespace {
namespace fs = std::filesystem;
constexpr std::string_view kSafetensorsIndexSuffix = ".safetensors.index.json";
}  // namespace

absl::StatusOr<FolderListing> ListFolder(const std::string& folder) {
  FolderListing listing;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with('.')) continue;  // what copying and mounting leave behind
    if (name.ends_with(".safetensors")) listing.safetensors.push_back(it->path().string());
    if (name.ends_with(".gguf")) listing.gguf.push_back(it->path().string());
    if (name.ends_with(kSafetensorsIndexSuffix)) listing.indexes.push_back(it->path().string());
  }
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat("listing ", folder, ": ", error.message()));
  }
  for (auto* names : {&listing.safetensors, &listing.gguf, &listing.indexes}) {
    std::sort(names->begin(), names->end());
  }
  return listing;
}

std::vector<std::string> IndexesOf(const std::string& folder, const FolderListing& listing) {
  const std::string usual = (fs::path(folder) / kSafetensorsIndexName).string();
  return NameExists(usual) ? std::vector{usual} : listing.indexes;
}

}  // namespace fulcrum
