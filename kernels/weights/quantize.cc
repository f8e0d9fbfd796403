// Streaming conversion: one tensor's rows at a time through the formats' encoders.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/weights/quantize.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block128.h"
#include "kernels/formats/q2_0.h"
#include "kernels/weights/container_layout.h"
#include "kernels/weights/output_file.h"
#include "kernels/weights/tensor_catalog.h"
#include "kernels/weights/verdict.h"

namespace fulcrum {
namespace {

constexpr int kQ2Block = 64;
constexpr JudgeOptions kConvert = {.convert = true};

size_t ElementBytes(TensorType type) { return type == TensorType::kF32 ? 4 : 2; }

bool IsFloat(TensorType type) {
  return type == TensorType::kBf16 || type == TensorType::kF16 || type == TensorType::kF32;
}

// Readers tell the two Q2_0 block sizes apart by the padded extent, which very few blocks leave
// open.
bool Q2ExtentTells(int64_t n, int64_t k) {
  constexpr int kOtherBlock = 128;
  if (k % kOtherBlock != 0) return true;
  const auto padded = [&](int block) {
    return AlignToGguf(static_cast<uint64_t>(n * (k / block) * Q2BlockBytes(block)));
  };
  return padded(kQ2Block) != padded(kOtherBlock);
}

bool Matches(const std::string& pattern, const TensorInfo& tensor) {
  return fnmatch(pattern.c_str(), tensor.name.c_str(), 0) == 0;
}

// Why a tensor that is asked for, or served as a projection, keeps its type all the same; or empty.
std::string KeepByTarget(const QuantizeOptions& options, const TensorInfo& tensor) {
  if (!IsFloat(tensor.type)) return absl::StrCat("element type ", tensor.dtype);
  if (options.target == WeightFormat::kFp8Block128 && !tensor.name.ends_with(".weight")) {
    return "not named *.weight, so its scale grid would have no name";
  }
  if (options.target == WeightFormat::kQ2_0) {
    if (tensor.shape[1] % kQ2Block != 0) {
      return absl::StrFormat("K = %d is not a multiple of %d", tensor.shape[1], kQ2Block);
    }
    if (!Q2ExtentTells(tensor.shape[0], tensor.shape[1])) {
      return "so small that its Q2_0 extent would not tell the block size";
    }
  }
  return "";
}

// Why a tensor is copied instead of converted, or empty. `verdict` is that of JudgeAll, which
// decides about what no pattern names.
std::string KeepReason(const QuantizeOptions& options, const TensorCatalog& catalog,
                       const TensorInfo& tensor, const Verdict& verdict) {
  if (options.convert.empty()) {
    if (verdict.fate != Fate::kServed) return std::string(verdict.why.message());
    if (verdict.weight.family == Family::kLmHead) return "LM head; name it to convert it";
    return KeepByTarget(options, tensor);
  }
  const bool asked = std::any_of(options.convert.begin(), options.convert.end(),
                                 [&](const std::string& p) { return Matches(p, tensor); });
  if (!asked) return "not asked for";
  const Verdict content = JudgeContent(catalog, tensor, kConvert);
  if (content.fate != Fate::kServed) return std::string(content.why.message());
  const WeightSpec size{.name = tensor.name, .n = tensor.shape[0], .k = tensor.shape[1]};
  if (absl::Status s = CheckSize(size); !s.ok()) return std::string(s.message());
  return KeepByTarget(options, tensor);
}

// One input tensor on its way: where its bytes come from and which outputs they fill.
struct Job {
  const TensorInfo* input = nullptr;
  bool convert = false;
  std::string scale_name;  // fp8: the grid that goes with it
};

struct Plan {
  std::vector<Job> jobs;
  std::vector<OutputTensor> outputs;
};

OutputTensor Kept(const TensorInfo& tensor, std::string_view dtype) {
  // The alignment of types without whole bytes, or wider than here, is one of convenience.
  const auto elements = std::max<uint64_t>(
      1, static_cast<uint64_t>(std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1},
                                               std::multiplies<>())));
  return {.name = tensor.name,
          .dtype = std::string(dtype),
          .shape = tensor.shape,
          .bytes = tensor.bytes,
          .alignment = std::max<uint64_t>(1, tensor.bytes / elements)};
}

// Why a tensor that is not converted cannot be copied either, or empty.
std::string DropReason(const QuantizeOptions& options, const TensorInfo& tensor) {
  // Copied, what the input's readers only list would be read by those of the output.
  if (!tensor.undecided.empty()) return tensor.undecided;
  if (options.target != WeightFormat::kQ2_0) return "";
  constexpr size_t kMaxGgufDimensions = 4;
  if (GgufTypeFor(tensor.dtype).empty() || tensor.shape.size() > kMaxGgufDimensions ||
      tensor.bytes == 0) {
    return absl::StrFormat("GGUF cannot hold %s %s", tensor.dtype, ShapeText(tensor.shape));
  }
  if (tensor.name.size() > kMaxGgufName) {
    return absl::StrFormat("GGUF cannot hold a name of %d bytes", tensor.name.size());
  }
  return "";
}

void PlanConversion(const QuantizeOptions& options, const TensorInfo& tensor, Plan& plan) {
  const bool gguf = options.target == WeightFormat::kQ2_0;
  const WeightSpec spec{.name = tensor.name,
                        .format = options.target,
                        .n = tensor.shape[0],
                        .k = tensor.shape[1],
                        .q2_block = kQ2Block};
  Job job{.input = &tensor, .convert = true, .scale_name = ""};
  plan.outputs.push_back({.name = tensor.name,
                          .dtype = gguf ? "Q2_0" : "F8_E4M3",
                          .shape = tensor.shape,
                          .bytes = static_cast<uint64_t>(spec.n * spec.row_bytes())});
  if (!gguf) {
    job.scale_name = absl::StrCat(tensor.name, "_scale_inv");
    plan.outputs.push_back(
        {.name = job.scale_name,
         .dtype = "F32",
         .shape = {spec.scale_rows(), spec.scale_cols()},
         .bytes = 4 * static_cast<uint64_t>(spec.scale_rows() * spec.scale_cols()),
         .alignment = 4});
  }
  plan.jobs.push_back(std::move(job));
}

// The code of the first refused tensor where a node would refuse the input.
absl::StatusOr<Plan> MakePlan(const QuantizeOptions& options, const TensorCatalog& catalog,
                              QuantizeReport& report) {
  const std::vector<Verdict> verdicts = JudgeAll(catalog, kConvert);
  if (absl::Status s = CheckRefused(catalog, verdicts); !s.ok()) return s;
  const bool gguf = options.target == WeightFormat::kQ2_0;
  Plan plan;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorInfo& tensor = catalog.tensors[i];
    report.bytes_in += tensor.bytes;
    const std::string keep = KeepReason(options, catalog, tensor, verdicts[i]);
    if (keep.empty()) {
      report.converted.push_back(tensor.name);
      PlanConversion(options, tensor, plan);
    } else if (const std::string drop = DropReason(options, tensor); !drop.empty()) {
      report.dropped.push_back({tensor.name, drop});
    } else {
      report.kept.push_back({tensor.name, keep});
      plan.outputs.push_back(Kept(tensor, gguf ? GgufTypeFor(tensor.dtype) : tensor.dtype));
      plan.jobs.push_back({.input = &tensor, .convert = false, .scale_name = ""});
    }
  }
  return plan;
}

absl::Status Widen(const TensorInfo& tensor, int64_t first_row, std::span<const std::byte> raw,
                   std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    if (tensor.type == TensorType::kF32) {
      std::memcpy(&out[i], raw.data() + i * sizeof(float), sizeof(float));
    } else {
      uint16_t bits;
      std::memcpy(&bits, raw.data() + i * sizeof(bits), sizeof(bits));
      out[i] = tensor.type == TensorType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
    }
    if (std::isfinite(out[i])) continue;
    const int64_t k = tensor.shape[1];
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: tensor %s holds a NaN or infinity at row %d, column %d; it has no quantized form",
        tensor.file->path(), Quoted(tensor.name), first_row + static_cast<int64_t>(i) / k,
        static_cast<int64_t>(i) % k));
  }
  return absl::OkStatus();
}

// What was just encoded has to be what a node serves: rows of Q2_0 whose block holds more than F16
// can be the scale of have an infinite one.
absl::Status CheckQ2Rows(const TensorInfo& tensor, int64_t first_row, int64_t row_bytes,
                         std::span<const std::byte> coded) {
  const int64_t k = tensor.shape[1];
  for (int64_t i = 0; i < static_cast<int64_t>(coded.size()) / row_bytes; ++i) {
    const auto row =
        coded.subspan(static_cast<size_t>(i * row_bytes), static_cast<size_t>(row_bytes));
    for (int64_t column = 0; column < k; column += kQ2Block) {
      if (std::isfinite(Q2Scale(row, kQ2Block, column))) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %s holds a weight beyond F16's largest, 65504, in row %d, columns %d to %d: "
          "the block's Q2_0 scale would be infinite",
          tensor.file->path(), Quoted(tensor.name), first_row + i, column, column + kQ2Block - 1));
    }
  }
  return absl::OkStatus();
}

// Stripes of 128 rows: a whole row of scale blocks, and a bound on memory.
absl::Status ConvertTensor(const Job& job, WeightFormat target, const OutputTensor& weight,
                           const OutputTensor* scale, OutputFile& file) {
  const TensorInfo& tensor = *job.input;
  const int64_t n = tensor.shape[0], k = tensor.shape[1];
  const WeightSpec spec{
      .name = tensor.name, .format = target, .n = n, .k = k, .q2_block = kQ2Block};
  std::vector<float> scales(scale != nullptr ? scale->bytes / sizeof(float) : 0);
  const int64_t stripe = std::min<int64_t>(n, kFp8Block);
  std::vector<std::byte> raw(static_cast<size_t>(stripe * k) * ElementBytes(tensor.type));
  std::vector<float> values(static_cast<size_t>(stripe * k));
  std::vector<std::byte> coded(static_cast<size_t>(stripe * spec.row_bytes()));
  for (int64_t row = 0; row < n; row += stripe) {
    const int64_t rows = std::min(stripe, n - row);
    const auto count = static_cast<size_t>(rows * k);
    const std::span<std::byte> in = std::span(raw).first(count * ElementBytes(tensor.type));
    const std::span<float> wide = std::span(values).first(count);
    const std::span<std::byte> out =
        std::span(coded).first(static_cast<size_t>(rows * spec.row_bytes()));
    const uint64_t offset = static_cast<uint64_t>(row * k) * ElementBytes(tensor.type);
    if (absl::Status s = tensor.file->Read(tensor.offset + offset, in); !s.ok()) return s;
    if (absl::Status s = Widen(tensor, row, in, wide); !s.ok()) return s;
    if (target == WeightFormat::kFp8Block128) {
      const auto grid_row = static_cast<size_t>(row / kFp8Block * spec.scale_cols());
      EncodeFp8Block128(
          wide, rows, k, std::span(reinterpret_cast<uint8_t*>(out.data()), out.size()),
          std::span(scales).subspan(grid_row, static_cast<size_t>(spec.scale_cols())));
    } else {
      const auto row_bytes = static_cast<size_t>(spec.row_bytes());
      for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
        EncodeQ2Row(wide.subspan(i * static_cast<size_t>(k), static_cast<size_t>(k)), kQ2Block,
                    out.subspan(i * row_bytes, row_bytes));
      }
      if (absl::Status s = CheckQ2Rows(tensor, row, spec.row_bytes(), out); !s.ok()) return s;
    }
    const uint64_t at = weight.offset + static_cast<uint64_t>(row * spec.row_bytes());
    if (absl::Status s = file.Write(at, out); !s.ok()) return s;
  }
  return scale == nullptr ? absl::OkStatus()
                          : file.Write(scale->offset, std::as_bytes(std::span(scales)));
}

absl::Status CopyTensor(const TensorInfo& tensor, const OutputTensor& output, OutputFile& file) {
  constexpr uint64_t kPiece = 4 << 20;
  std::vector<std::byte> buffer(std::min(kPiece, tensor.bytes));
  for (uint64_t done = 0; done < tensor.bytes; done += buffer.size()) {
    const std::span<std::byte> piece =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), tensor.bytes - done));
    if (absl::Status s = tensor.file->Read(tensor.offset + done, piece); !s.ok()) return s;
    if (absl::Status s = file.Write(output.offset + done, piece); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// The first few of what patterns could name.
std::string Convertible(QuantizeOptions options, const TensorCatalog& catalog) {
  constexpr int kShown = 5;
  options.convert = {"*"};  // the verdict on a tensor that is not named does not matter then
  std::string names;
  int count = 0;
  for (const TensorInfo& tensor : catalog.tensors) {
    if (!KeepReason(options, catalog, tensor, {}).empty() || ++count > kShown) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", tensor.name);
  }
  if (count == 0) return "none of its tensors can be converted";
  return absl::StrCat(count, " can be converted: ", names, count > kShown ? ", ..." : "");
}

absl::Status CheckOptions(const QuantizeOptions& options, const TensorCatalog& catalog) {
  if (options.target == WeightFormat::kBf16) {
    return absl::InvalidArgumentError("target bf16 is no quantization; expected fp8 or q2_0");
  }
  if (catalog.container != "safetensors") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is a %s model; only safetensors are converted", options.input, catalog.container));
  }
  for (const std::string& pattern : options.convert) {
    if (std::none_of(catalog.tensors.begin(), catalog.tensors.end(),
                     [&](const TensorInfo& t) { return Matches(pattern, t); })) {
      return absl::InvalidArgumentError(absl::StrCat("convert pattern ", Quoted(pattern),
                                                     " matches no tensor of ", options.input, "; ",
                                                     Convertible(options, catalog)));
    }
  }
  for (const std::string& input : catalog.files) {
    std::error_code error;
    if (std::filesystem::equivalent(input, options.output, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("output ", options.output, " is one of the inputs; name another file"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizeReport> Quantize(const QuantizeOptions& options) {
  absl::StatusOr<TensorCatalog> catalog = ReadCatalog(options.input);
  if (!catalog.ok()) return catalog.status();
  if (absl::Status s = CheckOptions(options, *catalog); !s.ok()) return s;
  QuantizeReport report;
  absl::StatusOr<Plan> plan = MakePlan(options, *catalog, report);
  if (!plan.ok()) return plan.status();
  if (!options.convert.empty() && report.converted.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the convert patterns match nothing of ",
                                                   options.input, " that can be converted; ",
                                                   Convertible(options, *catalog)));
  }
  absl::StatusOr<ContainerLayout> layout = options.target == WeightFormat::kQ2_0
                                               ? LayoutGguf(plan->outputs)
                                               : LayoutSafetensors(plan->outputs);
  if (!layout.ok()) return layout.status();
  report.bytes_out = layout->file_bytes;
  absl::StatusOr<std::unique_ptr<OutputFile>> file = OutputFile::Create(
      options.output, layout->file_bytes,
      options.replace ? OutputFile::Existing::kReplace : OutputFile::Existing::kRefuse);
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Write(0, std::as_bytes(std::span(layout->header)));
  if (!status.ok()) return status;

  std::map<std::string, const OutputTensor*> outputs;
  for (const OutputTensor& output : plan->outputs) outputs[output.name] = &output;
  for (const Job& job : plan->jobs) {
    const OutputTensor& output = *outputs.at(job.input->name);
    const OutputTensor* scale = job.scale_name.empty() ? nullptr : outputs.at(job.scale_name);
    status = job.convert ? ConvertTensor(job, options.target, output, scale, **file)
                         : CopyTensor(*job.input, output, **file);
    if (!status.ok()) return status;
    job.input->file->Release(job.input->offset, job.input->bytes);
  }
  if (absl::Status s = (*file)->Commit(); !s.ok()) return s;
  return report;
}

}  // namespace fulcrum
