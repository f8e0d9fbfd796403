// Opens the files under a path and lists their tensors as one.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/tensor_catalog.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/weights/checkpoint_parts.h"
#include "kernels/weights/file_links.h"
#include "kernels/weights/folder_listing.h"
#include "kernels/weights/gguf.h"
#include "kernels/weights/layer_count.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/safetensors.h"
#include "kernels/weights/safetensors_index.h"

namespace fulcrum {
namespace {

// The first bytes, which tell the container.
absl::StatusOr<std::string> Magic(const WeightFile& file) {
  constexpr uint64_t kMost = 8;
  std::string magic(std::min(kMost, file.size()), '\0');
  absl::Status status = file.Read(0, std::as_writable_bytes(std::span(magic)));
  if (!status.ok()) return status;
  return magic;
}

// Text where the length of a safetensors header would be: lengths are below 2^32.
bool LooksLikeJson(std::string_view magic) {
  return magic.starts_with('{') && magic.find_first_of(std::string_view("\0", 1)) == magic.npos;
}

// Sorted by name. Of tensors that share a name one is left, and refused: which of them counts would
// be a guess. Where none of them holds a byte, nothing is to be guessed.
std::vector<TensorInfo> WithUniqueNames(std::vector<TensorInfo> tensors) {
  // One that can be read comes before one that is only listed, so that the name is not passed over.
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    const bool a_listed = !a.undecided.empty(), b_listed = !b.undecided.empty();
    return std::tie(a.name, a_listed, a.file->path()) < std::tie(b.name, b_listed, b.file->path());
  });
  std::vector<TensorInfo> unique;
  for (TensorInfo& tensor : tensors) {
    if (unique.empty() || unique.back().name != tensor.name) {
      unique.push_back(std::move(tensor));
    } else if (unique.back().refused.empty() && unique.back().bytes + tensor.bytes > 0) {
      unique.back().refused =
          absl::StrCat("duplicate tensor name: another is in ", tensor.file->path());
    }
  }
  return unique;
}

class Reader {
 public:
  Reader(const std::string& path, const ReadRule& may_read) : may_read_(may_read) {
    catalog_.path = path;
    catalog_.container = "safetensors";
  }

  absl::StatusOr<TensorCatalog> Read() {
    if (absl::Status s = AddPath(catalog_.path); !s.ok()) return s;
    if (layers_) NotWhole(CheckLayers(ModelsNames(), *layers_));
    catalog_.tensors = WithUniqueNames(std::move(catalog_.tensors));
    return std::move(catalog_);
  }

 private:
  using File = std::shared_ptr<const WeightFile>;

  absl::Status MayRead(const std::string& path) const {
    return may_read_ ? may_read_(path) : absl::OkStatus();
  }
  // The first reason is the cause of the others.
  void NotWhole(const absl::Status& status) {
    if (catalog_.whole.ok()) catalog_.whole = status;
  }
  void Promise(const std::optional<LayerPromise>& layers) {
    if (!layers_) layers_ = layers;
  }
  // Of the tensors that make the model: what an index does not name is not among them.
  std::vector<std::string_view> ModelsNames() const {
    std::vector<std::string_view> names;
    if (index_) {
      for (const SafetensorsIndex::Entry& entry : index_->entries) names.push_back(entry.tensor);
    } else {
      for (const TensorInfo& tensor : catalog_.tensors) names.push_back(tensor.name);
    }
    return names;
  }

  absl::StatusOr<const Manifest*> ManifestIn(const std::string& folder) {
    const auto [it, is_new] = manifests_.try_emplace(folder);
    if (!is_new) return &it->second;
    if (absl::Status s = MayRead(folder); !s.ok()) return s;
    absl::StatusOr<Manifest> manifest = ReadManifests(folder, may_read_);
    if (!manifest.ok()) return manifest.status();
    it->second = *std::move(manifest);
    return &it->second;
  }

  // What lies beside the file, by each of its names, and what its header says.
  absl::Status ApplyManifests(const std::string& path, Manifest own,
                              std::vector<TensorInfo>& tensors) {
    for (const std::string& name : LinkChain(path)) {
      const absl::StatusOr<const Manifest*> beside = ManifestIn(FolderOf(name));
      if (!beside.ok()) return beside.status();
      own.Merge(**beside);
    }
    Promise(own.layers);
    for (TensorInfo& tensor : tensors) {
      const bool weights = tensor.shape.size() == 2 && tensor.bytes > 0;
      if (weights && tensor.type == TensorType::kF8E4m3) tensor.refused = own.fp8_refusal;
    }
    return absl::OkStatus();
  }

  absl::Status AddSafetensors(const File& file, const Manifest& around = {}) {
    absl::StatusOr<SafetensorsContents> contents = ParseSafetensors(file);
    if (!contents.ok()) return contents.status();
    Manifest manifest = std::move(contents->manifest);
    manifest.Merge(around);
    absl::Status status = ApplyManifests(file->path(), std::move(manifest), contents->tensors);
    if (!status.ok()) return status;
    catalog_.files.push_back(file->path());
    std::move(contents->tensors.begin(), contents->tensors.end(),
              std::back_inserter(catalog_.tensors));
    return absl::OkStatus();
  }

  absl::Status AddSafetensors(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      absl::StatusOr<File> file = OpenWeightFile(path, may_read_);
      if (!file.ok()) return file.status();
      if (absl::Status s = AddSafetensors(*file); !s.ok()) return s;
    }
    NotWhole(CheckPartNames(paths));
    return absl::OkStatus();
  }

  absl::Status AddGguf(const std::vector<std::string>& paths) {
    catalog_.container = "gguf";
    std::vector<GgufPart> parts;
    for (const std::string& path : paths) {
      absl::StatusOr<File> file = OpenWeightFile(path, may_read_);
      if (!file.ok()) return file.status();
      absl::StatusOr<GgufContents> contents = ParseGguf(*file);
      if (!contents.ok()) return contents.status();
      parts.push_back(contents->part);
      Promise(contents->layers);
      catalog_.files.push_back(path);
      std::move(contents->tensors.begin(), contents->tensors.end(),
                std::back_inserter(catalog_.tensors));
    }
    NotWhole(CheckGgufParts(parts));
    return absl::OkStatus();
  }

  absl::Status AddIndex(const std::string& path) {
    absl::StatusOr<SafetensorsIndex> index = ReadSafetensorsIndex(path, may_read_);
    if (!index.ok()) return index.status();
    index_ = *std::move(index);
    const absl::StatusOr<const Manifest*> beside = ManifestIn(FolderOf(path));
    if (!beside.ok()) return beside.status();
    Manifest around = index_->manifest;
    around.Merge(**beside);
    Promise(around.layers);
    std::map<std::string, std::string> paths;  // by the index's spelling; those that are there
    std::vector<std::string> named;
    for (const std::string& name : index_->Files()) {
      const std::string member = absl::StrCat(FolderOf(path), "/", name);
      named.push_back(member);
      absl::StatusOr<File> file = OpenWeightFile(member, may_read_);
      if (absl::IsNotFound(file.status())) {
        NotWhole(absl::NotFoundError(
            absl::StrCat(path, " names a file that is not there: ", file.status().message())));
        continue;
      }
      if (!file.ok()) return file.status();
      if (absl::Status s = AddSafetensors(*file, around); !s.ok()) return s;
      paths[name] = member;
    }
    if (named.empty()) {
      NotWhole(absl::InvalidArgumentError(absl::StrCat(path, ": weight_map names no tensor")));
    }
    NotWhole(CheckPartNames(named));
    NotWhole(ApplyIndex(*index_, paths, catalog_.tensors));
    NotWhole(CheckTotalSize(*index_, catalog_.tensors));
    return absl::OkStatus();
  }

  absl::Status AddFolder(const std::string& folder) {
    const absl::StatusOr<FolderListing> listing = ListFolder(folder);
    if (!listing.ok()) return listing.status();
    const std::vector<std::string> indexes = IndexesOf(folder, *listing);
    if (indexes.size() == 1 && FileName(indexes.front()) == kSafetensorsIndexName) {
      return AddIndex(indexes.front());
    }
    if (listing->safetensors.empty() == listing->gguf.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s holds %d safetensors and %d GGUF files; expected one kind of model, or name a file",
          folder, listing->safetensors.size(), listing->gguf.size()));
    }
    if (!listing->gguf.empty()) return AddGguf(listing->gguf);
    if (indexes.empty()) return AddSafetensors(listing->safetensors);
    if (indexes.size() == 1) return AddIndex(indexes.front());
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " holds several indexes: ", absl::StrJoin(indexes, ", "), "; name one of them"));
  }

  // Looks for the index that has the file, by one of its names; gives the index's spelling of it.
  absl::StatusOr<std::string> FindIndexOf(const std::string& path) {
    for (const std::string& name : LinkChain(path)) {
      const std::string folder = FolderOf(name);
      if (absl::Status s = MayRead(folder); !s.ok()) return s;
      // Without the right to list the folder there is the usual name left.
      for (const std::string& at :
           IndexesOf(folder, ListFolder(folder).value_or(FolderListing{}))) {
        absl::StatusOr<SafetensorsIndex> index = ReadSafetensorsIndex(at, may_read_);
        if (!index.ok()) return index.status();
        const std::vector<std::string> files = index->Files();
        const std::string own(FileName(name));
        if (!std::binary_search(files.begin(), files.end(), own)) continue;
        index_ = *std::move(index);
        return own;
      }
    }
    return "";
  }

  // A safetensors file that is named by itself: by its name or an index beside it, it may be one of
  // several.
  absl::Status AddOneSafetensors(const File& file) {
    const std::string& path = file->path();
    const absl::StatusOr<std::string> own = FindIndexOf(path);
    if (!own.ok()) return own.status();
    if (absl::Status s = AddSafetensors(file, index_ ? index_->manifest : Manifest{}); !s.ok()) {
      return s;
    }
    NotWhole(CheckPartNames({path}));
    if (!index_) return absl::OkStatus();
    if (const size_t files = index_->Files().size(); files > 1) {
      NotWhole(absl::InvalidArgumentError(absl::StrFormat(
          "%s is one of %d files of the index %s; name the index or its folder. A tensor of this "
          "file can be loaded by its name",
          path, files, index_->path)));
    }
    NotWhole(ApplyIndex(*index_, {{*own, path}}, catalog_.tensors));
    return absl::OkStatus();
  }

  absl::Status AddPath(const std::string& path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      if (absl::Status s = MayRead(path); !s.ok()) return s;
      return AddFolder(path);
    }
    if (path.ends_with(kIndexSuffix)) return AddIndex(path);
    const absl::StatusOr<File> file = OpenWeightFile(path, may_read_);
    if (!file.ok()) return file.status();
    const absl::StatusOr<std::string> magic = Magic(**file);
    if (!magic.ok()) return magic.status();
    if (magic->starts_with(kGgufMagic)) return AddGguf({path});
    if (LooksLikeJson(*magic)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " begins with '{', as JSON does: an index is named NAME", std::string(kIndexSuffix),
          " and lies beside its files (in a download cache: in snapshots, not in blobs)"));
    }
    return AddOneSafetensors(*file);
  }

  const ReadRule& may_read_;
  TensorCatalog catalog_;
  std::map<std::string, Manifest> manifests_;  // by folder
  std::optional<LayerPromise> layers_;
  std::optional<SafetensorsIndex> index_;
};

}  // namespace

const TensorInfo* TensorCatalog::Find(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

absl::StatusOr<TensorCatalog> ReadCatalog(const std::string& path, const ReadRule& may_read) {
  return Reader(path, may_read).Read();
}

}  // namespace fulcrum
