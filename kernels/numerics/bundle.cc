// See bundle.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/bundle.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_format.h"
#include "kernels/weights/output_file.h"
#include "kernels/weights/strict_json.h"

namespace fulcrum::numerics {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMagic[] = "fulcrum bundle 1\n";
constexpr int64_t kMostBytes = int64_t{1} << 32;

uint32_t Checksum(const std::string& bytes, size_t from) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()) + from, bytes.size() - from));
}

absl::Status Bad(std::string_view what) {
  return absl::DataLossError(absl::StrFormat("not a whole bundle: %s", what));
}

std::string Text(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
}
int64_t Whole(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}

template <class Enum, class All>
bool Parse(const Json& json, const char* key, const All& all, Enum* out) {
  const std::string name = Text(json, key);
  for (Enum value : all) {
    if (Name(value) != name) continue;
    *out = value;
    return true;
  }
  return false;
}

}  // namespace

std::string EncodeBundle(const Bundle& b) {
  std::string raw(reinterpret_cast<const char*>(b.activations.data()), b.activations.size() * 2);
  raw.append(reinterpret_cast<const char*>(b.outputs.data()), b.outputs.size());
  const auto name = [](auto value) { return std::string(Name(value)); };
  const Json json = {{"found_by", b.found_by},
                     {"detail", b.detail},
                     {"time", b.time},
                     {"node", b.node},
                     {"device", b.device},
                     {"shard", b.shard},
                     {"shard_hash", b.shard_hash},
                     {"shard_version", b.shard_version},
                     {"origin", b.origin},
                     {"tensor", b.tensor},
                     {"family", name(b.family)},
                     {"format", name(b.format)},
                     {"n", b.n},
                     {"k", b.k},
                     {"arm", b.arm},
                     {"class", name(b.numerics)},
                     {"step", name(b.step)},
                     {"output_type", name(b.output_type)},
                     {"lever_epoch", b.lever_epoch},
                     {"rows", b.rows},
                     {"column", b.column},
                     {"columns", b.columns},
                     {"crc32", Checksum(raw, 0)}};
  return kMagic + json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n" + raw;
}

absl::StatusOr<Bundle> DecodeBundle(const std::string& bytes) {
  const size_t begin = std::strlen(kMagic);
  if (bytes.compare(0, begin, kMagic) != 0) {
    return Bad("it does not begin with \"fulcrum bundle 1\"");
  }
  const size_t end = bytes.find('\n', begin);
  if (end == std::string::npos) return Bad("its description has no end");
  const Json json =
      ParseStrictJson(std::string_view(bytes).substr(begin, end - begin)).value_or(Json());
  if (!json.is_object()) return Bad("its description is no JSON object");
  Bundle b{
      .found_by = Text(json, "found_by"),
      .detail = Text(json, "detail"),
      .time = Text(json, "time"),
      .node = Text(json, "node"),
      .device = Text(json, "device"),
      .shard = Text(json, "shard"),
      .shard_hash = Text(json, "shard_hash"),
      .shard_version = static_cast<uint64_t>(std::max<int64_t>(0, Whole(json, "shard_version"))),
      .origin = Text(json, "origin"),
      .tensor = Text(json, "tensor"),
      .n = Whole(json, "n"),
      .k = Whole(json, "k"),
      .arm = Text(json, "arm"),
      .lever_epoch = static_cast<uint64_t>(Whole(json, "lever_epoch")),
      .rows = 0,
      .column = Whole(json, "column"),
      .columns = Whole(json, "columns")};
  constexpr std::array kOutputTypes = {DType::kBf16, DType::kF32};
  if (!Parse(json, "family", kAllFamilies, &b.family) ||
      !Parse(json, "format", kAllWeightFormats, &b.format) ||
      !Parse(json, "class", kAllNumericsClasses, &b.numerics) ||
      !Parse(json, "step", kAllSteps, &b.step) ||
      !Parse(json, "output_type", kOutputTypes, &b.output_type)) {
    return Bad("its family, format, class, step or output_type is unknown");
  }
  const int64_t rows = Whole(json, "rows");
  const auto plausible = [](int64_t v) { return v > 0 && v < (int64_t{1} << 31); };
  if (!plausible(rows) || !plausible(b.k) || !plausible(b.n) || !plausible(b.columns) ||
      b.column < 0 || b.column + b.columns > b.n || rows * b.k > kMostBytes ||
      rows * b.columns > kMostBytes) {
    return Bad("its rows, k, n, column and columns do not make a product");
  }
  b.rows = static_cast<int>(rows);
  const size_t activations = static_cast<size_t>(rows * b.k) * 2;
  const size_t outputs = static_cast<size_t>(rows * b.columns) * SizeOf(b.output_type);
  if (bytes.size() - end - 1 != activations + outputs) {
    return Bad(absl::StrFormat("%d bytes of values, expected %d", bytes.size() - end - 1,
                               activations + outputs));
  }
  if (Checksum(bytes, end + 1) != static_cast<uint64_t>(Whole(json, "crc32"))) {
    return Bad("its values have another checksum");
  }
  b.activations.resize(activations / 2);
  std::memcpy(b.activations.data(), bytes.data() + end + 1, activations);
  b.outputs.resize(outputs);
  std::memcpy(b.outputs.data(), bytes.data() + end + 1 + activations, outputs);
  return b;
}

absl::Status WriteBundle(const Bundle& bundle, const std::string& path) {
  const std::string bytes = EncodeBundle(bundle);
  auto file = OutputFile::Create(path, bytes.size(), OutputFile::Existing::kRefuse);
  if (!file.ok()) return file.status();
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  if (absl::Status s = (*file)->Write(0, {data, bytes.size()}); !s.ok()) return s;
  return (*file)->Commit();
}

absl::StatusOr<Bundle> ReadBundle(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrFormat("%s: %s", path, std::strerror(errno)));
  }
  std::ostringstream bytes;
  bytes << file.rdbuf();
  absl::StatusOr<Bundle> bundle = DecodeBundle(bytes.str());
  if (bundle.ok()) return bundle;
  return absl::Status(bundle.status().code(),
                      absl::StrFormat("%s: %s", path, std::string(bundle.status().message())));
}

}  // namespace fulcrum::numerics
