// Reads config.json as far as it speaks of fp8 weights; everything else in it is ignored.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/quantization_config.h"

#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/weights/tensor_info.h"
#include "kernels/weights/weight_file.h"

namespace fulcrum {
namespace {

using Json = nlohmann::json;

// `config` is an object; null when it has no such member.
const Json* Member(const Json& config, const char* name) {
  const auto it = config.find(name);
  return it == config.end() ? nullptr : &*it;
}

}  // namespace

absl::Status CheckQuantizationConfig(const std::string& directory) {
  constexpr uint64_t kMaxConfigBytes = 16 << 20;
  const std::string path = absl::StrCat(directory.empty() ? "." : directory, "/config.json");
  absl::StatusOr<std::shared_ptr<const WeightFile>> file = OpenWeightFile(path);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  if (!file.ok()) return file.status();
  if ((*file)->size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", (*file)->size(), " bytes; at most ", kMaxConfigBytes));
  }
  std::string text((*file)->size(), '\0');
  absl::Status status = (*file)->Read(0, std::as_writable_bytes(std::span(text)));
  if (!status.ok()) return status;
  const Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  }
  const Json* quantization = Member(config, "quantization_config");
  if (quantization == nullptr || !quantization->is_object()) return absl::OkStatus();
  const auto refuse = [&](const char* field, const Json& expected, const Json& found) {
    const std::string shown = found.dump(-1, ' ', true, Json::error_handler_t::replace);
    return absl::InvalidArgumentError(absl::StrCat(path, ": quantization_config.", field, " is ",
                                                   Quoted(shown), "; only ", expected.dump(),
                                                   " is served"));
  };
  const Json block = Json::array({kFp8Block, kFp8Block});
  const Json* found = Member(*quantization, "weight_block_size");
  if (found != nullptr && !found->is_null() && *found != block) {
    return refuse("weight_block_size", block, *found);
  }
  const Json format = "e4m3";
  found = Member(*quantization, "fmt");
  return found == nullptr || *found == format ? absl::OkStatus() : refuse("fmt", format, *found);
}

}  // namespace fulcrum
