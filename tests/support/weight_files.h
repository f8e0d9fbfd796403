// Builds safetensors and GGUF files byte by byte, well-formed or not, without the product's
// writers; and a directory that removes itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/weights/weight_file.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::test {

inline std::vector<std::byte> ToBytes(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline std::shared_ptr<const WeightFile> InMemory(std::string_view content) {
  return WeightFileFromBytes("memory", ToBytes(content));
}

template <class T>
std::string LittleEndian(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <class T>
std::string ArrayBytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// A safetensors file of a given header and data.
inline std::string Safetensors(std::string_view header, std::string_view data) {
  return LittleEndian<uint64_t>(header.size()) + std::string(header) + std::string(data);
}

// A well-formed safetensors file, tensor after tensor.
class SafetensorsBuilder {
 public:
  SafetensorsBuilder& Add(const std::string& name, const std::string& dtype,
                          const std::vector<int64_t>& shape, const std::string& data) {
    std::string dims;
    for (const int64_t d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    header_ += (header_.empty() ? "" : ",") + ("\"" + name + "\":{\"dtype\":\"" + dtype) +
               "\",\"shape\":[" + dims + "],\"data_offsets\":[" + std::to_string(data_.size()) +
               "," + std::to_string(data_.size() + data.size()) + "]}";
    data_ += data;
    return *this;
  }
  std::string Build() const { return Safetensors("{" + header_ + "}", data_); }

 private:
  std::string header_, data_;
};

// A GGUF file from raw parts; nothing is checked or aligned but where Data says so.
class GgufBuilder {
 public:
  explicit GgufBuilder(uint32_t version = 3) : version_(version) {}

  static std::string String(std::string_view text) {
    return LittleEndian<uint64_t>(text.size()) + std::string(text);
  }
  // A metadata pair whose value is given as bytes.
  GgufBuilder& Pair(std::string_view key, uint32_t type, std::string_view value) {
    pairs_ += String(key) + LittleEndian<uint32_t>(type) + std::string(value);
    ++pair_count_;
    return *this;
  }
  // `dimensions` innermost first: [K, N].
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type,
                      uint64_t offset) {
    tensors_ += String(name) + LittleEndian<uint32_t>(static_cast<uint32_t>(dimensions.size())) +
                ArrayBytes(dimensions) + LittleEndian(type) + LittleEndian(offset);
    ++tensor_count_;
    return *this;
  }
  // The data section, which begins at the next multiple of `alignment`.
  GgufBuilder& Data(std::string_view data, uint64_t alignment = 32) {
    data_ = data;
    alignment_ = alignment;
    return *this;
  }
  std::string Build() const {
    std::string out = "GGUF" + LittleEndian(version_) + LittleEndian(tensor_count_) +
                      LittleEndian(pair_count_) + pairs_ + tensors_;
    out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_, '\0');
    return out + data_;
  }

  uint64_t tensor_count_ = 0, pair_count_ = 0;  // public to be falsified

 private:
  uint32_t version_;
  uint64_t alignment_ = 32;
  std::string pairs_, tensors_, data_;
};

class TempDir {
 public:
  TempDir() {
    std::string path = (std::filesystem::temp_directory_path() / "fulcrum_test.XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string path() const { return path_; }
  std::string At(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and gives its path.
  std::string Write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories(std::filesystem::path(At(name)).parent_path());
    std::ofstream(At(name), std::ios::binary) << content;
    return At(name);
  }

 private:
  std::string path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// All rows of a source; empty when reading failed.
inline std::vector<std::byte> ReadAll(const WeightSource& source) {
  const WeightSpec& spec = source.spec();
  std::vector<std::byte> bytes(static_cast<size_t>(spec.n * spec.row_bytes()));
  if (!source.ReadRows(0, spec.n, bytes).ok()) bytes.clear();
  return bytes;
}

}  // namespace fulcrum::test
