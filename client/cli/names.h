// The contract's spellings of the wire's enums ("fp8", "ffn_gate_up", "batch_invariant"), both
// ways.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fulcrum/v1/lever_service.pb.h"
#include "fulcrum/v1/shard_service.pb.h"
#include "fulcrum/v1/types.pb.h"

namespace fulcrum::cli {

// Lower case without the enum's prefix; "unspecified" for zero, the number when it is not known.
std::string Word(v1::WeightFormat value);
std::string Word(v1::Family value);
std::string Word(v1::Phase value);
std::string Word(v1::Step value);
std::string Word(v1::Policy value);
std::string Word(v1::NumericsClass value);
std::string Word(v1::MmaModel value);
std::string Word(v1::CloseReason value);
std::string Word(v1::ShardState value);
std::string Word(v1::LeverKind value);
std::string Word(v1::LeverSource value);
std::string Word(v1::CanaryUnit value);
std::string Word(v1::CanaryState value);
std::string Word(v1::CanarySuccess value);

// Empty text is the unspecified value. INVALID_ARGUMENT lists what is allowed.
absl::StatusOr<v1::Policy> ParsePolicyWord(const std::string& word);
absl::StatusOr<v1::Step> ParseStepWord(const std::string& word);
absl::StatusOr<v1::DType> ParseDTypeWord(const std::string& word);
absl::StatusOr<v1::Family> ParseFamilyWord(const std::string& word);

}  // namespace fulcrum::cli
