// Enum translation. The wire numbers every enum from 1 in the node's own order (0 is unspecified),
// which the assertions below pin value by value, so a translation is one addition.
// SPDX-License-Identifier: Apache-2.0
#include "service/proto_names.h"

namespace fulcrum::service {
namespace {

template <class Wire, class Own>
constexpr Wire Shift(Own value) {
  return static_cast<Wire>(static_cast<int>(value) + 1);
}

template <class Own, Own kLast, class Wire>
constexpr std::optional<Own> Unshift(Wire value) {
  const int number = static_cast<int>(value);
  if (number < 1 || number > static_cast<int>(kLast) + 1) return std::nullopt;
  return static_cast<Own>(number - 1);
}

template <class Wire, class Own>
constexpr bool Same(Own own, Wire wire) {
  return Shift<Wire>(own) == wire;
}

static_assert(Same(DType::kBf16, v1::DTYPE_BF16) && Same(DType::kF16, v1::DTYPE_F16) &&
              Same(DType::kF32, v1::DTYPE_F32) && v1::DType_ARRAYSIZE == 4);
static_assert(Same(WeightFormat::kFp8Block128, v1::WEIGHT_FORMAT_FP8) &&
              Same(WeightFormat::kQ2_0, v1::WEIGHT_FORMAT_Q2_0) &&
              Same(WeightFormat::kBf16, v1::WEIGHT_FORMAT_BF16) && v1::WeightFormat_ARRAYSIZE == 4);
static_assert(Same(Family::kAttnQkv, v1::FAMILY_ATTN_QKV) &&
              Same(Family::kAttnO, v1::FAMILY_ATTN_O) && Same(Family::kSsmIn, v1::FAMILY_SSM_IN) &&
              Same(Family::kSsmOut, v1::FAMILY_SSM_OUT) &&
              Same(Family::kFfnGateUp, v1::FAMILY_FFN_GATE_UP) &&
              Same(Family::kFfnDown, v1::FAMILY_FFN_DOWN) &&
              Same(Family::kSharedExpert, v1::FAMILY_SHARED_EXPERT) &&
              Same(Family::kLmHead, v1::FAMILY_LM_HEAD) && Same(Family::kOther, v1::FAMILY_OTHER) &&
              v1::Family_ARRAYSIZE == 10);
static_assert(Same(Phase::kAttention, v1::PHASE_ATTENTION) && Same(Phase::kSsm, v1::PHASE_SSM) &&
              Same(Phase::kFfn, v1::PHASE_FFN) && Same(Phase::kMoe, v1::PHASE_MOE) &&
              Same(Phase::kLmHead, v1::PHASE_LM_HEAD) && Same(Phase::kOther, v1::PHASE_OTHER) &&
              v1::Phase_ARRAYSIZE == 7);
static_assert(Same(Step::kDecode, v1::STEP_DECODE) && Same(Step::kPrefill, v1::STEP_PREFILL) &&
              v1::Step_ARRAYSIZE == 3);
static_assert(Same(Policy::kExact, v1::POLICY_EXACT) &&
              Same(Policy::kBatchInvariant, v1::POLICY_BATCH_INVARIANT) &&
              Same(Policy::kFastest, v1::POLICY_FASTEST) && v1::Policy_ARRAYSIZE == 4);
static_assert(Same(NumericsClass::kExact, v1::NUMERICS_CLASS_EXACT) &&
              Same(NumericsClass::kMma, v1::NUMERICS_CLASS_MMA) &&
              Same(NumericsClass::kBlockfold, v1::NUMERICS_CLASS_BLOCKFOLD) &&
              Same(NumericsClass::kW8A8, v1::NUMERICS_CLASS_W8A8) &&
              v1::NumericsClass_ARRAYSIZE == 5);
static_assert(Same(CloseReason::kFull, v1::CLOSE_REASON_FULL) &&
              Same(CloseReason::kDeviceIdle, v1::CLOSE_REASON_DEVICE_IDLE) &&
              Same(CloseReason::kWindow, v1::CLOSE_REASON_WINDOW) &&
              Same(CloseReason::kDeadline, v1::CLOSE_REASON_DEADLINE) &&
              Same(CloseReason::kLeverChange, v1::CLOSE_REASON_LEVER_CHANGE) &&
              Same(CloseReason::kDrain, v1::CLOSE_REASON_DRAIN) && v1::CloseReason_ARRAYSIZE == 7);
static_assert(Same(ShardState::kLoading, v1::SHARD_STATE_LOADING) &&
              Same(ShardState::kServing, v1::SHARD_STATE_SERVING) &&
              Same(ShardState::kReplacing, v1::SHARD_STATE_REPLACING) &&
              Same(ShardState::kDraining, v1::SHARD_STATE_DRAINING) &&
              Same(ShardState::kFailed, v1::SHARD_STATE_FAILED) && v1::ShardState_ARRAYSIZE == 6);
static_assert(Same(LeverSource::kBuiltIn, v1::LEVER_SOURCE_BUILT_IN) &&
              Same(LeverSource::kProfile, v1::LEVER_SOURCE_PROFILE) &&
              Same(LeverSource::kConfig, v1::LEVER_SOURCE_CONFIG) &&
              Same(LeverSource::kEnvironment, v1::LEVER_SOURCE_ENVIRONMENT) &&
              Same(LeverSource::kJournal, v1::LEVER_SOURCE_JOURNAL) &&
              Same(LeverSource::kRpc, v1::LEVER_SOURCE_RPC) && v1::LeverSource_ARRAYSIZE == 7);
static_assert(Same(LeverKind::kFamilyMap, v1::LEVER_KIND_FAMILY_MAP) &&
              Same(LeverKind::kChoice, v1::LEVER_KIND_CHOICE) &&
              Same(LeverKind::kNumber, v1::LEVER_KIND_NUMBER) && v1::LeverKind_ARRAYSIZE == 4);
static_assert(Same(CanaryUnit::kClient, v1::CANARY_UNIT_CLIENT) &&
              Same(CanaryUnit::kShard, v1::CANARY_UNIT_SHARD) &&
              Same(CanaryUnit::kBatch, v1::CANARY_UNIT_BATCH) &&
              Same(CanaryUnit::kConnection, v1::CANARY_UNIT_CONNECTION) &&
              v1::CanaryUnit_ARRAYSIZE == 5);
static_assert(Same(CanarySuccess::kHold, v1::CANARY_SUCCESS_HOLD) &&
              Same(CanarySuccess::kPromote, v1::CANARY_SUCCESS_PROMOTE) &&
              v1::CanarySuccess_ARRAYSIZE == 3);
static_assert(Same(CanaryState::kRunning, v1::CANARY_STATE_RUNNING) &&
              Same(CanaryState::kHolding, v1::CANARY_STATE_HOLDING) &&
              Same(CanaryState::kPromoted, v1::CANARY_STATE_PROMOTED) &&
              Same(CanaryState::kReverted, v1::CANARY_STATE_REVERTED) &&
              Same(CanaryState::kAborted, v1::CANARY_STATE_ABORTED) &&
              v1::CanaryState_ARRAYSIZE == 6);
static_assert(Same(MmaModel::kNotMeasured, v1::MMA_MODEL_NOT_MEASURED) &&
              Same(MmaModel::kFollowed, v1::MMA_MODEL_FOLLOWED) &&
              Same(MmaModel::kNotFollowed, v1::MMA_MODEL_NOT_FOLLOWED) &&
              v1::MmaModel_ARRAYSIZE == 4);

}  // namespace

v1::DType ToProto(DType v) { return Shift<v1::DType>(v); }
v1::WeightFormat ToProto(WeightFormat v) { return Shift<v1::WeightFormat>(v); }
v1::Family ToProto(Family v) { return Shift<v1::Family>(v); }
v1::Phase ToProto(Phase v) { return Shift<v1::Phase>(v); }
v1::Step ToProto(Step v) { return Shift<v1::Step>(v); }
v1::Policy ToProto(Policy v) { return Shift<v1::Policy>(v); }
v1::NumericsClass ToProto(NumericsClass v) { return Shift<v1::NumericsClass>(v); }
v1::CloseReason ToProto(CloseReason v) { return Shift<v1::CloseReason>(v); }
v1::ShardState ToProto(ShardState v) { return Shift<v1::ShardState>(v); }
v1::LeverSource ToProto(LeverSource v) { return Shift<v1::LeverSource>(v); }
v1::LeverKind ToProto(LeverKind v) { return Shift<v1::LeverKind>(v); }
v1::CanaryUnit ToProto(CanaryUnit v) { return Shift<v1::CanaryUnit>(v); }
v1::CanarySuccess ToProto(CanarySuccess v) { return Shift<v1::CanarySuccess>(v); }
v1::CanaryState ToProto(CanaryState v) { return Shift<v1::CanaryState>(v); }
v1::MmaModel ToProto(MmaModel v) { return Shift<v1::MmaModel>(v); }

std::optional<DType> FromProto(v1::DType v) {
  if (v == v1::DTYPE_UNSPECIFIED) return DType::kBf16;
  return Unshift<DType, DType::kF32>(v);
}
std::optional<Family> FromProto(v1::Family v) {
  if (v == v1::FAMILY_UNSPECIFIED) return Family::kOther;
  return Unshift<Family, Family::kOther>(v);
}
std::optional<Step> FromProto(v1::Step v) {
  if (v == v1::STEP_UNSPECIFIED) return Step::kDecode;
  return Unshift<Step, Step::kPrefill>(v);
}
std::optional<Policy> FromProto(v1::Policy v, Policy node_default) {
  if (v == v1::POLICY_UNSPECIFIED) return node_default;
  return Unshift<Policy, Policy::kFastest>(v);
}
std::optional<WeightFormat> FromProto(v1::WeightFormat v) {
  return Unshift<WeightFormat, WeightFormat::kBf16>(v);
}
std::optional<Phase> FromProto(v1::Phase v) { return Unshift<Phase, Phase::kOther>(v); }
std::optional<NumericsClass> FromProto(v1::NumericsClass v) {
  return Unshift<NumericsClass, NumericsClass::kW8A8>(v);
}
std::optional<CloseReason> FromProto(v1::CloseReason v) {
  return Unshift<CloseReason, CloseReason::kDrain>(v);
}
std::optional<ShardState> FromProto(v1::ShardState v) {
  return Unshift<ShardState, ShardState::kFailed>(v);
}
std::optional<LeverSource> FromProto(v1::LeverSource v) {
  return Unshift<LeverSource, LeverSource::kRpc>(v);
}
std::optional<LeverKind> FromProto(v1::LeverKind v) {
  return Unshift<LeverKind, LeverKind::kNumber>(v);
}

std::optional<CanaryUnit> FromProto(v1::CanaryUnit v) {
  return Unshift<CanaryUnit, CanaryUnit::kConnection>(v);
}
std::optional<CanarySuccess> FromProto(v1::CanarySuccess v) {
  return Unshift<CanarySuccess, CanarySuccess::kPromote>(v);
}

}  // namespace fulcrum::service
