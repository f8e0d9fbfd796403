// Tensors that are listed and not served, and the reasons why summed up, for logs and reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace fulcrum {

struct SkippedTensor {
  std::string tensor;
  std::string reason;  // "norm"; "KIND: particulars of this tensor"
};

struct SkipCount {
  std::string reason;  // the kind alone where there is one
  size_t count = 0;
  std::string example;  // the first such tensor
};

// One entry for each kind of reason, the most frequent first.
std::vector<SkipCount> CountByReason(std::span<const SkippedTensor> skipped);

// "3 skipped: 2 norm, 1 embedding", at most a few reasons; "0 skipped".
std::string SkipSummary(std::span<const SkippedTensor> skipped);

}  // namespace fulcrum
