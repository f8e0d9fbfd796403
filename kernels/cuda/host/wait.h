// Waits for a device by spinning: a thread that sleeps wakes up later than a launch takes. Every
// wait has a limit, and none queries the driver more often than it must.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fulcrum::cuda {

// After this time without an answer a device counts as hung. The longest launches take well under a
// second.
inline constexpr absl::Duration kHangLimit = absl::Seconds(10);

// One pause of a spinning thread.
void Pause();

// Waits until `done` returns true or an error. Calls `look` every millisecond for faults that
// `done` cannot see. DEADLINE_EXCEEDED after `limit`. After 2 ms, longer than any decode launch,
// the thread sleeps 20 us between two calls of `done`.
absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> done,
                   absl::FunctionRef<absl::Status()> look, absl::Duration limit);

// Whether the work in the stream, or before the event, has ended; INTERNAL on a device fault.
absl::StatusOr<bool> Ended(cudaStream_t stream);
absl::StatusOr<bool> Ended(cudaEvent_t event);

// Waits until the stream is empty.
absl::Status AwaitEmpty(cudaStream_t stream, absl::Duration limit);

}  // namespace fulcrum::cuda
