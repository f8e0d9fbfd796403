// What the GGUF reader says of a file that it refuses, for its tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/weights/gguf.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {

inline std::string Refusal(const std::string& content) {
  const auto contents = ParseGguf(InMemory(content));
  std::string message(contents.status().message());
  // Bytes that the header speaks of and that are not there: the file lost them.
  const bool lost = message.find("cut short") != std::string::npos;
  EXPECT_EQ(contents.status().code(),
            lost ? absl::StatusCode::kDataLoss : absl::StatusCode::kInvalidArgument);
  return message;
}

inline std::string RefusedTensor(const std::vector<uint64_t>& dimensions, uint32_t type,
                                 uint64_t offset = 0, size_t data = 64) {
  return Refusal(
      GgufBuilder().Tensor("bad", dimensions, type, offset).Data(std::string(data, 0)).Build());
}

}  // namespace fulcrum::test
