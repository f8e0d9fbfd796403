// Opens the files under a path and lists their tensors as one.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/tensor_catalog.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/weights/gguf.h"
#include "kernels/weights/quantization_config.h"
#include "kernels/weights/safetensors.h"
#include "kernels/weights/safetensors_header.h"

namespace fulcrum {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kIndexSuffix = ".index.json";

absl::StatusOr<bool> IsGguf(const WeightFile& file) {
  std::array<char, 4> magic{};
  if (file.size() < magic.size()) return false;
  if (absl::Status s = file.Read(0, std::as_writable_bytes(std::span(magic))); !s.ok()) return s;
  return std::string_view(magic.data(), magic.size()) == kGgufMagic;
}

absl::Status AddSafetensors(const std::string& path, TensorCatalog& catalog) {
  absl::StatusOr<std::shared_ptr<const WeightFile>> file = OpenWeightFile(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::vector<TensorInfo>> tensors = ParseSafetensors(*file);
  if (!tensors.ok()) return tensors.status();
  catalog.files.push_back(path);
  std::move(tensors->begin(), tensors->end(), std::back_inserter(catalog.tensors));
  return absl::OkStatus();
}

// Reads the parts of one GGUF model: all of them or, by the split keys of each, an error.
absl::Status AddGguf(const std::vector<std::string>& paths, TensorCatalog& catalog) {
  for (const std::string& path : paths) {
    absl::StatusOr<std::shared_ptr<const WeightFile>> file = OpenWeightFile(path);
    if (!file.ok()) return file.status();
    absl::StatusOr<GgufContents> contents = ParseGguf(*file);
    if (!contents.ok()) return contents.status();
    if (std::max<uint64_t>(contents->split_count, 1) != paths.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s says it is one of %d parts of a model, but %d GGUF files are being read together; "
          "name one whole file, or a directory that holds exactly the parts of one model",
          path, std::max<uint64_t>(contents->split_count, 1), paths.size()));
    }
    catalog.files.push_back(path);
    std::move(contents->tensors.begin(), contents->tensors.end(),
              std::back_inserter(catalog.tensors));
  }
  return absl::OkStatus();
}

absl::Status AddIndex(const fs::path& index_path, TensorCatalog& catalog) {
  const std::string directory = index_path.parent_path().string();
  if (absl::Status s = CheckQuantizationConfig(directory); !s.ok()) return s;
  absl::StatusOr<std::shared_ptr<const WeightFile>> file = OpenWeightFile(index_path.string());
  if (!file.ok()) return file.status();
  if ((*file)->size() > kMaxSafetensorsHeader) {
    return absl::InvalidArgumentError(absl::StrFormat("%s has %d bytes; an index has at most %d",
                                                      index_path.string(), (*file)->size(),
                                                      kMaxSafetensorsHeader));
  }
  std::string text((*file)->size(), '\0');
  absl::Status status = (*file)->Read(0, std::as_writable_bytes(std::span(text)));
  if (!status.ok()) return status;
  absl::StatusOr<SafetensorsIndex> index = ParseSafetensorsIndex(text, index_path.string());
  if (!index.ok()) return index.status();

  std::map<std::string, std::string> home;  // tensor -> path of the file the index names
  std::vector<std::string> paths;
  for (const SafetensorsIndex::Entry& entry : index->entries) {
    paths.push_back((index_path.parent_path() / entry.file).string());
    home[entry.tensor] = paths.back();
  }
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  for (const std::string& path : paths) {
    if (absl::Status s = AddSafetensors(path, catalog); !s.ok()) return s;
  }
  // A tensor counts where the index says it is; copies elsewhere are leftovers of another save.
  std::erase_if(catalog.tensors, [&](const TensorInfo& tensor) {
    const auto it = home.find(tensor.name);
    if (it == home.end()) return false;
    if (it->second != tensor.file->path()) return true;
    home.erase(it);
    return false;
  });
  if (home.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s places tensor %s in %s, which does not hold it (%d such tensors)", index_path.string(),
      Quoted(home.begin()->first), home.begin()->second, home.size()));
}

absl::Status AddDirectory(const fs::path& directory, TensorCatalog& catalog) {
  std::error_code error;
  if (fs::exists(directory / kIndexName, error)) return AddIndex(directory / kIndexName, catalog);
  std::vector<std::string> safetensors, gguf;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string extension = it->path().extension().string();
    if (extension == ".safetensors") safetensors.push_back(it->path().string());
    if (extension == ".gguf") gguf.push_back(it->path().string());
  }
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("listing ", directory.string(), ": ", error.message()));
  }
  std::sort(safetensors.begin(), safetensors.end());
  std::sort(gguf.begin(), gguf.end());
  if (safetensors.empty() == gguf.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s holds %d safetensors and %d GGUF files; expected one kind of model, or name a file",
        directory.string(), safetensors.size(), gguf.size()));
  }
  if (!gguf.empty()) {
    catalog.container = "gguf";
    return AddGguf(gguf, catalog);
  }
  if (absl::Status s = CheckQuantizationConfig(directory.string()); !s.ok()) return s;
  for (const std::string& path : safetensors) {
    if (absl::Status s = AddSafetensors(path, catalog); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status AddPath(const std::string& path, TensorCatalog& catalog) {
  std::error_code error;
  if (fs::is_directory(path, error)) return AddDirectory(path, catalog);
  if (path.ends_with(kIndexSuffix)) return AddIndex(path, catalog);
  absl::StatusOr<std::shared_ptr<const WeightFile>> file = OpenWeightFile(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<bool> gguf = IsGguf(**file);
  if (!gguf.ok()) return gguf.status();
  if (!*gguf) return AddSafetensors(path, catalog);
  catalog.container = "gguf";
  return AddGguf({path}, catalog);
}

}  // namespace

const TensorInfo* TensorCatalog::Find(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

absl::StatusOr<TensorCatalog> ReadCatalog(const std::string& path) {
  TensorCatalog catalog;
  catalog.path = path;
  catalog.container = "safetensors";
  if (absl::Status s = AddPath(path, catalog); !s.ok()) return s;
  std::sort(catalog.tensors.begin(), catalog.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto same =
      std::adjacent_find(catalog.tensors.begin(), catalog.tensors.end(),
                         [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (same != catalog.tensors.end()) {
    return absl::InvalidArgumentError(absl::StrFormat("duplicate tensor name %s: in %s and in %s",
                                                      Quoted(same->name), same->file->path(),
                                                      (same + 1)->file->path()));
  }
  return catalog;
}

}  // namespace fulcrum
