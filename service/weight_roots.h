// The rule that callers reach files under the configured weight_roots only.
//
// The rule, and what it holds against. A path is admitted when it lies under a root after all links
// are resolved; what is admitted is then opened by the path as it is named, since names and
// neighbours of a checkpoint's files are those of the named path (a download cache links its
// snapshots to blobs whose names say nothing). Between the two a hostile neighbour with write
// access under a root could point a link elsewhere, so the decision is made again for every file
// that was opened, by the place that the system gives for its descriptor: weights are read through
// that descriptor alone, and no change of names can move it. A caller learns nothing about files
// outside: the answer for them is one, whether or not they exist. Hard links and mounts under a
// root count as being there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/weights/tensor_catalog.h"

namespace fulcrum::service {

class WeightRoots {
 public:
  // Folders that exist (CheckConfig); links in them are resolved once, now.
  explicit WeightRoots(const std::vector<std::string>& folders);

  // The absolute path to open for a caller's, links unresolved; a relative path is looked for under
  // each root in turn. PERMISSION_DENIED outside the roots; FAILED_PRECONDITION without roots;
  // INVALID_ARGUMENT for a path that is empty, has a ".." part or a NUL; NOT_FOUND under the roots.
  absl::StatusOr<std::string> Admit(const std::string& path) const;

  // Reads the catalog of an admitted path. PERMISSION_DENIED as above when any file that was opened
  // for it lies outside.
  absl::StatusOr<TensorCatalog> Read(const std::string& admitted) const;

 private:
  bool Holds(const std::string& resolved) const;
  absl::Status CheckResolved(const std::string& path) const;

  std::vector<std::string> roots_;  // resolved
};

}  // namespace fulcrum::service
