// The wire's enums and the node's own, one to the other. ToProto is total. FromProto applies the
// default that types.proto documents for "unspecified" and returns nullopt for numbers this build
// does not know (a newer client's), which callers refuse: they are never guessed at.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "fulcrum/v1/lever_service.pb.h"
#include "fulcrum/v1/shard_service.pb.h"
#include "fulcrum/v1/types.pb.h"
#include "kernels/ladder/levers.h"
#include "kernels/types.h"
#include "scheduler/call.h"
#include "scheduler/canary.h"
#include "scheduler/lever_store.h"
#include "scheduler/shard_store.h"

namespace fulcrum::service {

v1::DType ToProto(DType value);
v1::WeightFormat ToProto(WeightFormat value);
v1::Family ToProto(Family value);
v1::Phase ToProto(Phase value);
v1::Step ToProto(Step value);
v1::Policy ToProto(Policy value);
v1::NumericsClass ToProto(NumericsClass value);
v1::CloseReason ToProto(CloseReason value);
v1::ShardState ToProto(ShardState value);
v1::LeverSource ToProto(LeverSource value);
v1::LeverKind ToProto(LeverKind value);
v1::CanaryUnit ToProto(CanaryUnit value);
v1::CanarySuccess ToProto(CanarySuccess value);
v1::CanaryState ToProto(CanaryState value);
v1::MmaModel ToProto(MmaModel value);

std::optional<DType> FromProto(v1::DType value);    // unspecified: BF16
std::optional<Family> FromProto(v1::Family value);  // unspecified: OTHER
std::optional<Step> FromProto(v1::Step value);      // unspecified: DECODE
// Unspecified: the node's default policy, which the caller knows.
std::optional<Policy> FromProto(v1::Policy value, Policy node_default);

// These have no default: unspecified is nullopt too.
std::optional<WeightFormat> FromProto(v1::WeightFormat value);
std::optional<Phase> FromProto(v1::Phase value);
std::optional<NumericsClass> FromProto(v1::NumericsClass value);
std::optional<CloseReason> FromProto(v1::CloseReason value);
std::optional<ShardState> FromProto(v1::ShardState value);
std::optional<LeverSource> FromProto(v1::LeverSource value);
std::optional<LeverKind> FromProto(v1::LeverKind value);
std::optional<CanaryUnit> FromProto(v1::CanaryUnit value);
std::optional<CanarySuccess> FromProto(v1::CanarySuccess value);

}  // namespace fulcrum::service
