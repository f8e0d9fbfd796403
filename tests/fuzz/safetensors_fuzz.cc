// Any bytes as a safetensors file: refused with a status, or a list of tensors inside the file.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "kernels/weights/file_source.h"
#include "kernels/weights/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  const auto file = fulcrum::WeightFileFromBytes("fuzz.safetensors", std::move(bytes));
  const auto tensors = fulcrum::ParseSafetensors(file);
  if (!tensors.ok()) return 0;
  for (const fulcrum::TensorInfo& tensor : *tensors) {
    FUZZ_REQUIRE(tensor.offset <= size && tensor.bytes <= size - tensor.offset);
    (void)fulcrum::OpenPlainWeight(tensor).ok();
    (void)fulcrum::OpenFp8Weight(tensor, nullptr).ok();
  }
  return 0;
}
