// Any bytes to the GGUF reader: whatever the bytes, the reader returns, and every tensor it
// accepts lies inside the file and reads whole.
// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <vector>

#include "kernels/weights/file_source.h"
#include "kernels/weights/gguf.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto contents =
      fulcrum::ParseGguf(fulcrum::WeightFileFromBytes("fuzz", {bytes.begin(), bytes.end()}));
  if (!contents.ok()) return 0;
  for (const fulcrum::TensorInfo& tensor : contents->tensors) {
    FUZZ_REQUIRE(fulcrum::CheckTensorName(tensor.name).ok());
    std::vector<std::byte> content(tensor.bytes);
    FUZZ_REQUIRE(tensor.file->Read(tensor.offset, content).ok());
    const auto weight = fulcrum::OpenPlainWeight(tensor);
    if (!weight.ok()) continue;
    const fulcrum::WeightSpec& spec = (*weight)->spec();
    std::vector<std::byte> rows(static_cast<size_t>(spec.n * spec.row_bytes()));
    FUZZ_REQUIRE((*weight)->ReadRows(0, spec.n, rows).ok());
  }
  return 0;
}
