// Small checkpoints made at random: names, shapes, types, scales, parts, indexes, links, manifests
// and damage, good ones as well as odd ones. The same seed makes the same files. Nothing of the
// product's writers takes part, and nothing here knows what a loader should say about the result.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/q2_0.h"
#include "tests/support/random_weights.h"
#include "tests/support/weight_files.h"

namespace fulcrum::test {

struct RandomCheckpoint {
  std::string path;   // what is named: a file, an index or a folder
  std::string story;  // what was made, for a failing test's message
};

class CheckpointMaker {
 public:
  CheckpointMaker(uint64_t seed, const TempDir& dir)
      : rng_(seed), dir_(dir), damaged_(Once(3)), broken_(Once(5)), odd_values_(Once(2)) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    // 448 * 7.5e35 is a finite F32, 448 * 7.6e35 is not.
    odd_scale_ =
        OneOf<float>({1e38f, -1e38f, 7.5e35f, 7.6e35f, kInfinity, -kInfinity,
                      std::numeric_limits<float>::quiet_NaN(), 0.0f, -0.0f, -0.5f, 1e-40f});
    story_ = absl::StrCat("seed ", seed, ":");
  }

  RandomCheckpoint Make() {
    const std::string path = Once(4) ? MakeGguf() : MakeSafetensors();
    return {.path = path, .story = story_};
  }

 private:
  struct Tensor {
    std::string name, dtype;
    std::vector<int64_t> shape;  // outermost first
    std::string data;
  };

  // True once in `n` times.
  bool Once(int64_t n) { return rng_.Below(n) == 0; }
  template <class T>
  T OneOf(const std::vector<T>& of) {
    return of[static_cast<size_t>(rng_.Below(static_cast<int64_t>(of.size())))];
  }
  void Tell(const std::string& what) { absl::StrAppend(&story_, " ", what); }

  std::string NewName() {
    static const std::vector<std::string> kPlain = {
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.linear_attn.in_proj_qkvz.weight",
        "layers.0.mlp.up_proj.weight",  // the shard name of the first
        "model.layers.00.mlp.up_proj.weight",
        "blk.0.ffn_up.weight",  // again
        "blk.1.attn_output.weight",
        "lm_head.weight",
        "output.weight",  // the shard name of the one before
        "adapter.weight"};
    static const std::vector<std::string> kNoProjection = {
        "model.norm.weight",
        "model.embed_tokens.weight",
        "token_embd.weight",
        "model.layers.0.mlp.up_proj.bias",
        "model.layers.0.mlp.experts.1.up_proj.weight",
        "model.layers.0.linear_attn.conv1d.weight",
        "other.weight_scale_inv",
        "table"};
    static const std::vector<std::string> kOdd = {
        "a b.weight",
        "model.layers.0.a/b.weight",
        "..weight",
        "...weight",
        ".weight",
        ".hidden.weight",
        "weight.weight",
        "\u00e9t\u00e9.weight",
        "\u202emirror.weight",
        "model.layers.3.\u2028.weight",
        std::string(128, 'n') + ".weight",
        std::string(129, 'n') + ".weight",
        std::string(60, 'm') + ".weight",
        "model.layers.7." + std::string(120, 'x') + ".weight"};
    while (true) {
      const std::string name = OneOf(Once(5) ? kOdd : Once(5) ? kNoProjection : kPlain);
      if (names_.insert(name).second) return name;
    }
  }

  std::vector<int64_t> Shape() {
    const std::vector<int64_t> kN = {1, 2, 3, 127, 128, 129};
    const std::vector<int64_t> kK = {1, 5, 64, 128, 129, 192, 256};
    if (Once(15)) return {OneOf(kK)};
    if (Once(20)) return {2, OneOf(kN), 3};
    if (Once(25)) return {0, 7};
    return {OneOf(kN), OneOf(kK)};
  }
  static int64_t Count(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t d : shape) count *= d;
    return count;
  }
  size_t Any(int64_t count) { return static_cast<size_t>(rng_.Below(count)); }

  float Scale() { return odd_values_ && Once(4) ? odd_scale_ : RandomFloat(rng_, -10, -4); }

  std::string Fp8Codes(int64_t count) {
    std::string codes(static_cast<size_t>(count), '\0');
    for (char& c : codes) c = static_cast<char>(rng_.Below(127) | rng_.Below(2) << 7);
    if (odd_values_ && count > 0 && Once(4)) codes[Any(count)] = OneOf<char>({'\x7f', '\xff'});
    return codes;
  }
  std::string Halves(int64_t count, bool bf16) {
    std::vector<uint16_t> values(static_cast<size_t>(count));
    for (uint16_t& v : values) {
      const auto value = static_cast<float>(rng_.Gauss() * 0.02);
      v = bf16 ? F32ToBf16(value) : F32ToF16(value);
    }
    if (odd_values_ && count > 0 && Once(5))
      values[Any(count)] = OneOf<uint16_t>({0x7f80, 0xffc0, 0x7f7f, 0x7c00});
    return ArrayBytes(values);
  }
  std::string Floats(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = static_cast<float>(rng_.Gauss() * 0.02);
    constexpr float kLargest = std::numeric_limits<float>::max();
    if (odd_values_ && count > 0 && Once(3)) {
      values[Any(count)] = OneOf<float>({kLargest, -kLargest, 65504, 65519, 65520, 1e38f,
                                         std::numeric_limits<float>::infinity()});
    }
    return ArrayBytes(values);
  }

  // The grid of a weight [n, k]: right, wrong, or none.
  void AddGrid(const Tensor& weight, std::vector<Tensor>& tensors) {
    const int64_t rows = (weight.shape[0] + 127) / 128, cols = (weight.shape[1] + 127) / 128;
    if (broken_ && Once(4)) return Tell("(no grid)");
    Tensor grid{
        .name = weight.name + "_scale_inv", .dtype = "F32", .shape = {rows, cols}, .data = ""};
    if (broken_ && Once(4)) grid.shape = {cols + 1, rows};
    std::vector<float> scales(static_cast<size_t>(Count(grid.shape)));
    for (float& scale : scales) scale = Scale();
    if (Once(30)) scales.assign(scales.size(), 0);
    if (Once(4)) {
      grid.dtype = broken_ && Once(2) ? "F16" : "BF16";
      std::vector<uint16_t> narrow;
      for (const float scale : scales) narrow.push_back(F32ToBf16(scale));
      grid.data = ArrayBytes(narrow);
    } else {
      grid.data = ArrayBytes(scales);
    }
    if (names_.insert(grid.name).second) tensors.push_back(std::move(grid));
  }

  void AddTensor(std::vector<Tensor>& tensors) {
    Tensor tensor{.name = NewName(), .dtype = "", .shape = Shape(), .data = ""};
    const int64_t count = Count(tensor.shape);
    const int64_t kind = rng_.Below(20);
    if (kind < 8) {
      tensor.dtype = "F8_E4M3";
      tensor.data = Fp8Codes(count);
    } else if (kind < 14) {
      tensor.dtype = kind < 13 ? "BF16" : "F16";
      tensor.data = Halves(count, kind < 13);
    } else if (kind < 17) {
      tensor.dtype = "F32";
      tensor.data = Floats(count);
    } else {
      tensor.dtype = Once(6) ? "F8_E5M2" : Once(2) ? "U8" : "BOOL";
      tensor.data = std::string(static_cast<size_t>(count), '\1');
    }
    const std::string shown =
        tensor.name.size() > 40 ? tensor.name.substr(0, 40) + "..." : tensor.name;
    Tell(absl::StrCat(shown, "/", tensor.dtype, "/", tensor.shape.size() == 2 ? "" : "not 2-D/",
                      count));
    const bool scaled = tensor.dtype == "F8_E4M3" || (broken_ && tensor.dtype == "BF16" && Once(4));
    tensors.push_back(tensor);
    if (scaled && tensor.shape.size() == 2 && count > 0) AddGrid(tensor, tensors);
  }

  std::string Damaged(std::string bytes) {
    if (!damaged_ || !Once(6)) return bytes;
    switch (rng_.Below(3)) {
      case 0:
        Tell("(cut)");
        return bytes.substr(0, bytes.size() - std::min<size_t>(bytes.size(), 1 + Any(9)));
      case 1:
        Tell("(bytes behind)");
        return bytes + std::string(1 + Any(40), '\0');
      default:
        Tell("(byte changed)");
        bytes[Any(std::min<int64_t>(64, static_cast<int64_t>(bytes.size())))] ^= 4;
        return bytes;
    }
  }

  // Writes a file, or in a download cache a blob and the link that has the file's name.
  void WriteFile(const std::string& name, const std::string& bytes) {
    if (!cache_) {
      dir_.Write("model/" + name, bytes);
      return;
    }
    const std::string blob = absl::StrCat("blob", blobs_++);
    dir_.Write("model/blobs/" + blob, bytes);
    const std::filesystem::path link = dir_.At("model/snapshots/rev/" + name);
    std::filesystem::create_directories(link.parent_path());
    std::filesystem::create_symlink("../../blobs/" + blob, link);
  }

  void MaybeManifest() {
    if (!Once(4)) return;
    const std::string block =
        OneOf<std::string>({"[128,128]", "[128,128]", "[128,128]", "[96,96]", "null", "7"});
    Tell("manifest " + block);
    WriteFile(
        "config.json",
        "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":" + block + "}}");
  }

  std::string MakeSafetensors() {
    std::vector<Tensor> tensors;
    for (int64_t left = 1 + rng_.Below(7); left > 0; --left) AddTensor(tensors);
    const auto parts = static_cast<size_t>(Once(2) ? 1 : 2 + rng_.Below(2));
    cache_ = Once(4);
    const bool index = cache_ || Once(3), numbered = Once(2);
    const auto file_name = [&](size_t part) {
      if (parts == 1) return std::string("model.safetensors");
      if (!numbered) return absl::StrCat("file", part, ".safetensors");
      return absl::StrCat("model-0000", part + 1, "-of-0000", parts, ".safetensors");
    };
    Tell(absl::StrCat("| ", parts, " file(s)", index ? ", index" : "", cache_ ? ", cache" : "",
                      numbered ? ", numbered" : ""));
    std::vector<SafetensorsBuilder> builders(parts);
    std::string map;
    for (const Tensor& tensor : tensors) {
      const size_t part = Any(static_cast<int64_t>(parts));
      builders[part].Add(tensor.name, tensor.dtype, tensor.shape, tensor.data);
      if (Once(20)) continue;  // a leftover that the index does not name
      const std::string home = file_name(damaged_ && Once(20) ? parts : part);
      absl::StrAppend(&map, map.empty() ? "" : ",", "\"", tensor.name, "\":\"", home, "\"");
    }
    for (size_t part = 0; part < parts; ++part) {
      if (damaged_ && parts > 1 && Once(8)) {
        Tell(absl::StrCat("(part ", part, " missing)"));
        continue;
      }
      WriteFile(file_name(part), Damaged(builders[part].Build()));
    }
    if (index) WriteFile("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    MaybeManifest();
    const std::string folder = dir_.At(cache_ ? "model/snapshots/rev" : "model");
    if (index && Once(2)) return folder + "/model.safetensors.index.json";
    if (parts == 1 && Once(2)) return folder + "/model.safetensors";
    return folder;
  }

  std::string Q2Rows(int64_t blocks, int block) {
    std::string rows;
    for (int64_t i = 0; i < blocks; ++i) {
      uint16_t d = F32ToF16(RandomFloat(rng_, -8, -4));
      if (odd_values_ && Once(40))
        d = OneOf<uint16_t>({0x7c00, 0xfc00, 0x7e00, 0, 0x8000, 0xbc00, 0x7bff, 1});
      rows += LittleEndian(d);
      for (int b = 2; b < Q2BlockBytes(block); ++b)
        rows.push_back(static_cast<char>(rng_.Below(256)));
    }
    return rows;
  }

  std::string GgufPart(int part, int parts) {
    constexpr uint32_t kU16 = 2;
    constexpr uint64_t kAlignment = 32;
    GgufBuilder builder;
    if (parts > 1) {
      builder
          .Pair("split.no", kU16,
                LittleEndian(static_cast<uint16_t>(damaged_ && Once(4) ? 0 : part)))
          .Pair("split.count", kU16, LittleEndian(static_cast<uint16_t>(parts)));
    }
    std::string data;
    for (int64_t left = 1 + rng_.Below(4); left > 0; --left) {
      const std::string name = NewName();
      std::vector<int64_t> shape = Shape();
      const int64_t kind = rng_.Below(10);
      uint32_t type = 30;
      std::string bytes;
      if (kind < 5) {
        const int block = Once(3) ? 128 : 64;
        const int64_t blocks = 1 + rng_.Below(4), rows = 1 + rng_.Below(40);
        shape = {rows, blocks * block};
        type = 42;
        bytes = Q2Rows(rows * blocks, block);
      } else if (kind < 8) {
        bytes = Halves(Count(shape), true);
      } else if (kind < 9) {
        type = 0;
        bytes = Floats(Count(shape));
      } else {
        type = 24;
        bytes = std::string(static_cast<size_t>(Count(shape)), '\1');
      }
      Tell(absl::StrCat(name.substr(0, 40), "/type ", type, "/", Count(shape)));
      const std::vector<uint64_t> dimensions(shape.rbegin(), shape.rend());
      builder.Tensor(name, dimensions, type, data.size());
      data += bytes;
      data.resize((data.size() + kAlignment - 1) / kAlignment * kAlignment, '\0');
      if (damaged_ && Once(8)) {
        Tell("(hole)");
        data += std::string(kAlignment * 2, '\0');
      }
    }
    return Damaged(builder.Data(data).Build());
  }

  std::string MakeGguf() {
    const int parts = Once(4) ? 2 : 1;
    for (int part = 0; part < parts; ++part) {
      const std::string bytes = GgufPart(part, parts);
      if (damaged_ && parts > 1 && Once(4)) continue;
      dir_.Write(absl::StrCat("model/m-0000", part + 1, "-of-0000", parts, ".gguf"), bytes);
    }
    std::filesystem::create_directories(dir_.At("model"));
    return parts == 1 && Once(2) ? dir_.At("model/m-00001-of-00001.gguf") : dir_.At("model");
  }

  Rng rng_;
  const TempDir& dir_;
  // What may be wrong with this checkpoint: its files, its pairs of weight and grid, its numbers.
  const bool damaged_, broken_, odd_values_;
  float odd_scale_ = 0;
  std::string story_;
  std::set<std::string> names_;
  bool cache_ = false;
  int blobs_ = 0;
};

}  // namespace fulcrum::test
