// Waiting for a device by spinning: a thread that sleeps wakes up later than a launch takes. No
// wait is without end, and none asks the driver more often than it must.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fulcrum::cuda {

// A device that owes an answer for so long has hung: the longest launches take well under a second.
inline constexpr absl::Duration kHangLimit = absl::Seconds(10);

// A breath of a thread that spins.
void Pause();

// Until `done` is true or fails. `look`, for faults that `done` cannot see, is called every
// millisecond. DEADLINE_EXCEEDED after `limit`. After 2 ms, longer than any decode launch, the
// thread sleeps 20 us between two asks.
absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> done,
                   absl::FunctionRef<absl::Status()> look, absl::Duration limit);

// Whether what is in the stream, or was before the event, has ended; INTERNAL on a device fault.
absl::StatusOr<bool> Ended(cudaStream_t stream);
absl::StatusOr<bool> Ended(cudaEvent_t event);

// Until the stream is empty.
absl::Status AwaitEmpty(cudaStream_t stream, absl::Duration limit);

}  // namespace fulcrum::cuda
