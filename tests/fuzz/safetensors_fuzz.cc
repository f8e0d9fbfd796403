// Any bytes to the safetensors reader: whatever the bytes, the reader returns, and every
// tensor it accepts lies inside the file and opens or is refused. The parsers of indexes and
// manifests take the same bytes.
// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weights/file_source.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/safetensors.h"
#include "kernels/weights/safetensors_index.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto contents =
      fulcrum::ParseSafetensors(fulcrum::WeightFileFromBytes("fuzz", {bytes.begin(), bytes.end()}));
  if (contents.ok()) {
    for (const fulcrum::TensorInfo& tensor : contents->tensors) {
      FUZZ_REQUIRE(fulcrum::CheckTensorName(tensor.name).ok());
      std::vector<std::byte> content(tensor.bytes);
      FUZZ_REQUIRE(tensor.file->Read(tensor.offset, content).ok());
      const auto weight = fulcrum::OpenFp8Weight(tensor, &contents->tensors.front());
      if (weight.ok() && !fulcrum::CheckFinite(**weight).ok()) continue;
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = fulcrum::ParseSafetensorsIndex(text, "fuzz");
  if (index.ok()) {
    for (const auto& entry : index->entries) {
      FUZZ_REQUIRE(!entry.file.empty() && entry.file.front() != '/');
      FUZZ_REQUIRE(("/" + entry.file + "/").find("/../") == std::string::npos);
    }
  }
  for (const auto kind : {fulcrum::ManifestKind::kConfig, fulcrum::ManifestKind::kQuantization}) {
    const auto manifest = fulcrum::ParseManifest(text, "fuzz", kind);
    FUZZ_REQUIRE(manifest.ok() || !manifest.status().message().empty());
  }
  return 0;
}
