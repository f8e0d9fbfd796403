// Any bytes as a GGUF file: refused with a status, or a list of tensors inside the file.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "kernels/weights/file_source.h"
#include "kernels/weights/gguf.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  const auto file = fulcrum::WeightFileFromBytes("fuzz.gguf", std::move(bytes));
  const auto contents = fulcrum::ParseGguf(file);
  if (!contents.ok()) return 0;
  for (const fulcrum::TensorInfo& tensor : contents->tensors) {
    FUZZ_REQUIRE(tensor.offset <= size && tensor.bytes <= size - tensor.offset);
    (void)fulcrum::OpenPlainWeight(tensor).ok();
  }
  return 0;
}
