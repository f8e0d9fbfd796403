// The checks between a parsed request and the queue: everything that can be wrong with a call is
// found here, before any of it is queued or any weight is touched. The same in every build; a
// violation is a typed status that names the field, what was expected and what came. Whether there
// is room and time is the scheduler's to say.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/types.h"
#include "scheduler/call.h"
#include "scheduler/shard_store.h"
#include "service/config.h"
#include "service/payload.h"
#include "service/project_codec.h"

namespace fulcrum::service {

inline constexpr int64_t kMaxOutputPitchFactor = 16;  // output_pitch is at most this many times N

struct AdmissionRules {
  LimitsConfig limits;
  Policy default_policy = Policy::kBatchInvariant;
};

// Fills the call's shards, rows, step, policy, output type and payload bytes, and the layout of its
// activations. On error the call is not to be submitted.
// INVALID_ARGUMENT (BadRequest), NOT_FOUND (ResourceInfo), FAILED_PRECONDITION
// (PreconditionFailure), or RESOURCE_EXHAUSTED (ErrorInfo, and no RetryInfo: waiting would not
// help) when the reply or the call is larger than the node allows.
absl::Status Admit(const ProjectRequest& request, const AdmissionRules& rules,
                   const ShardStore& store, Call* call, PayloadLayout* layout);

}  // namespace fulcrum::service
