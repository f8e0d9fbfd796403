// Spellings of the vocabulary in types.h, one table per enum.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/types.h"

namespace fulcrum {
namespace {

constexpr std::string_view kFormatNames[] = {"fp8", "q2_0", "bf16"};
constexpr std::string_view kDTypeNames[] = {"bf16", "f16", "f32"};
constexpr std::string_view kFamilyNames[] = {"attn_qkv",      "attn_o",      "ssm_in",
                                             "ssm_out",       "ffn_gate_up", "ffn_down",
                                             "shared_expert", "lm_head",     "other"};
constexpr std::string_view kPhaseNames[] = {"attention", "ssm", "ffn", "moe", "lm_head", "other"};
constexpr std::string_view kStepNames[] = {"decode", "prefill"};
constexpr std::string_view kPolicyNames[] = {"exact", "batch_invariant", "fastest"};
constexpr std::string_view kClassNames[] = {"exact", "mma", "blockfold", "w8a8"};
constexpr std::string_view kMmaModelNames[] = {"not_measured", "followed", "not_followed"};

template <class Enum, size_t N>
std::optional<Enum> Parse(const std::string_view (&names)[N], std::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

Phase PhaseOf(Family family) {
  switch (family) {
    case Family::kAttnQkv:
    case Family::kAttnO:
      return Phase::kAttention;
    case Family::kSsmIn:
    case Family::kSsmOut:
      return Phase::kSsm;
    case Family::kFfnGateUp:
    case Family::kFfnDown:
      return Phase::kFfn;
    case Family::kSharedExpert:
      return Phase::kMoe;
    case Family::kLmHead:
      return Phase::kLmHead;
    case Family::kOther:
      return Phase::kOther;
  }
  return Phase::kOther;
}

std::string_view Name(WeightFormat v) { return kFormatNames[static_cast<size_t>(v)]; }
std::string_view Name(DType v) { return kDTypeNames[static_cast<size_t>(v)]; }
std::string_view Name(Family v) { return kFamilyNames[static_cast<size_t>(v)]; }
std::string_view Name(Phase v) { return kPhaseNames[static_cast<size_t>(v)]; }
std::string_view Name(Step v) { return kStepNames[static_cast<size_t>(v)]; }
std::string_view Name(Policy v) { return kPolicyNames[static_cast<size_t>(v)]; }
std::string_view Name(NumericsClass v) { return kClassNames[static_cast<size_t>(v)]; }
std::string_view Name(MmaModel v) { return kMmaModelNames[static_cast<size_t>(v)]; }

std::optional<Family> ParseFamily(std::string_view n) { return Parse<Family>(kFamilyNames, n); }
std::optional<Policy> ParsePolicy(std::string_view n) { return Parse<Policy>(kPolicyNames, n); }
std::optional<Step> ParseStep(std::string_view n) { return Parse<Step>(kStepNames, n); }
std::optional<DType> ParseDType(std::string_view n) { return Parse<DType>(kDTypeNames, n); }
std::optional<WeightFormat> ParseWeightFormat(std::string_view n) {
  return Parse<WeightFormat>(kFormatNames, n);
}

}  // namespace fulcrum
