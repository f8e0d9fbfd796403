// See weight_roots.h.
// SPDX-License-Identifier: Apache-2.0
#include "service/weight_roots.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace fulcrum::service {
namespace {

absl::Status OutsideRoots() {
  return absl::PermissionDeniedError(
      "the path is not under a weight root of this node: files are read only from the folders of "
      "its configuration's weight_roots, after links are resolved");
}

std::optional<std::string> RealPath(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return std::nullopt;
  std::string result = resolved;
  free(resolved);
  return result;
}

bool NotThere(int error) { return error == ENOENT || error == ENOTDIR; }

}  // namespace

WeightRoots::WeightRoots(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    if (auto resolved = RealPath(folder)) roots_.push_back(*std::move(resolved));
  }
}

bool WeightRoots::Holds(const std::string& resolved) const {
  for (const std::string& root : roots_) {
    if (resolved == root || root == "/") return true;
    if (resolved.size() > root.size() && resolved.starts_with(root) &&
        resolved[root.size()] == '/') {
      return true;
    }
  }
  return false;
}

// Of one absolute path. What does not exist is NOT_FOUND only where the deepest part that does
// exist lies under a root; otherwise the answer is the same as for what exists outside.
absl::Status WeightRoots::CheckResolved(const std::string& path) const {
  if (const auto resolved = RealPath(path); resolved.has_value()) {
    return Holds(*resolved) ? absl::OkStatus() : OutsideRoots();
  }
  if (!NotThere(errno)) return OutsideRoots();
  std::string missing = path;
  while (true) {
    while (missing.size() > 1 && missing.back() == '/') missing.pop_back();
    struct stat info {};
    // There, yet not resolvable: a link that dangles, and may point anywhere.
    if (lstat(missing.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) return OutsideRoots();
    const size_t slash = missing.rfind('/');
    if (slash == std::string::npos) return OutsideRoots();
    const std::string parent = slash == 0 ? "/" : missing.substr(0, slash);
    if (const auto resolved = RealPath(parent); resolved.has_value()) {
      if (!Holds(*resolved)) return OutsideRoots();
      return absl::NotFoundError("no such file under the weight roots");
    }
    if (parent == "/" || !NotThere(errno)) return OutsideRoots();
    missing = parent;
  }
}

absl::StatusOr<std::string> WeightRoots::Admit(const std::string& path) const {
  if (roots_.empty()) {
    return absl::FailedPreconditionError(
        "this node's configuration has no weight_roots, so callers cannot load files");
  }
  if (path.empty() || path.size() >= PATH_MAX || path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a path of %d bytes%s; expected 1 to %d bytes without NUL", path.size(),
                        path.find('\0') != std::string::npos ? " with a NUL" : "", PATH_MAX - 1));
  }
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") return absl::InvalidArgumentError("the path has a '..' part");
  }
  if (path.front() == '/') {
    if (absl::Status s = CheckResolved(path); !s.ok()) return s;
    return path;
  }
  absl::Status refusal = absl::NotFoundError("no such file under the weight roots");
  for (const std::string& root : roots_) {
    std::string candidate = absl::StrCat(root, "/", path);
    const absl::Status status = CheckResolved(candidate);
    if (status.ok()) return candidate;
    if (absl::IsPermissionDenied(status)) refusal = status;
  }
  return refusal;
}

absl::StatusOr<TensorCatalog> WeightRoots::Read(const std::string& admitted) const {
  absl::StatusOr<TensorCatalog> catalog =
      ReadCatalog(admitted, [this](const std::string& path) { return CheckResolved(path); });
  if (!catalog.ok()) return catalog;
  std::set<const WeightFile*> seen;
  for (const TensorInfo& tensor : catalog->tensors) {
    if (!seen.insert(tensor.file.get()).second) continue;
    const absl::StatusOr<std::string> location = tensor.file->Location();
    if (!location.ok()) return location.status();
    if (!Holds(*location)) return OutsideRoots();
  }
  return catalog;
}

}  // namespace fulcrum::service
