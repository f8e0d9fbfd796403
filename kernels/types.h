// The words of the product as types: formats, families, phases, steps, policies, numerics classes.
// Plain values with a name each; everything above speaks of a projection in these terms.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fulcrum {

// How a weight matrix W[N,K] is stored. Geometry and decoding are in kernels/formats/.
enum class WeightFormat : uint8_t {
  kFp8Block128,  // E4M3FN bytes, one FP32 scale per 128x128 block
  kQ2_0,         // GGUF type 42: 2-bit codes with one FP16 scale per 64 (or 128) weights
  kBf16,         // plain BF16, unscaled
};
inline constexpr std::array kAllWeightFormats = {WeightFormat::kFp8Block128, WeightFormat::kQ2_0,
                                                 WeightFormat::kBf16};

// Element type of activations and outputs on the wire and in a launch.
enum class DType : uint8_t { kBf16, kF16, kF32 };
constexpr size_t SizeOf(DType t) { return t == DType::kF32 ? 4 : 2; }

// Which projection of the model a shard is.
enum class Family : uint8_t {
  kAttnQkv,
  kAttnO,
  kSsmIn,
  kSsmOut,
  kFfnGateUp,
  kFfnDown,
  kSharedExpert,
  kLmHead,
  kOther,
};
inline constexpr std::array kAllFamilies = {
    Family::kAttnQkv, Family::kAttnO,        Family::kSsmIn,  Family::kSsmOut, Family::kFfnGateUp,
    Family::kFfnDown, Family::kSharedExpert, Family::kLmHead, Family::kOther};

// The model phase a family belongs to (a metric label).
enum class Phase : uint8_t { kAttention, kSsm, kFfn, kMoe, kLmHead, kOther };
inline constexpr std::array kAllPhases = {Phase::kAttention, Phase::kSsm,    Phase::kFfn,
                                          Phase::kMoe,       Phase::kLmHead, Phase::kOther};
Phase PhaseOf(Family family);

// Decode (few rows, latency) or prefill (many rows), as told by the caller, never guessed from M.
enum class Step : uint8_t { kDecode, kPrefill };
inline constexpr std::array kAllSteps = {Step::kDecode, Step::kPrefill};

// What a caller asks of the numerics of one call.
enum class Policy : uint8_t { kExact, kBatchInvariant, kFastest };
inline constexpr std::array kAllPolicies = {Policy::kExact, Policy::kBatchInvariant,
                                            Policy::kFastest};

// Two arms of one class agree bit for bit at every M, tile, split, launch shape and batch.
enum class NumericsClass : uint8_t { kExact, kMma, kBlockfold, kW8A8 };
inline constexpr std::array kAllNumericsClasses = {NumericsClass::kExact, NumericsClass::kMma,
                                                   NumericsClass::kBlockfold, NumericsClass::kW8A8};

// Whether a device's tensor cores give the bits of kernels/numerics/tensor_core.h. Only then can a
// CPU say what an output of class mma must be.
enum class MmaModel : uint8_t { kNotMeasured, kFollowed, kNotFollowed };
inline constexpr std::array kAllMmaModels = {MmaModel::kNotMeasured, MmaModel::kFollowed,
                                             MmaModel::kNotFollowed};

// Names are the contract's spellings (metric labels, lever keys, JSON); Parse* accepts exactly
// them.
std::string_view Name(WeightFormat);   // "fp8", "q2_0", "bf16"
std::string_view Name(DType);          // "bf16", "f16", "f32"
std::string_view Name(Family);         // "attn_qkv", ...
std::string_view Name(Phase);          // "attention", ...
std::string_view Name(Step);           // "decode", "prefill"
std::string_view Name(Policy);         // "exact", "batch_invariant", "fastest"
std::string_view Name(NumericsClass);  // "exact", "mma", "blockfold", "w8a8"
std::string_view Name(MmaModel);       // "not_measured", "followed", "not_followed"
std::optional<Family> ParseFamily(std::string_view name);
std::optional<Policy> ParsePolicy(std::string_view name);
std::optional<Step> ParseStep(std::string_view name);
std::optional<DType> ParseDType(std::string_view name);
std::optional<WeightFormat> ParseWeightFormat(std::string_view name);

// Rows of one decode launch: 1..kMaxDecodeRows.
inline constexpr int kMaxDecodeRows = 32;

}  // namespace fulcrum
