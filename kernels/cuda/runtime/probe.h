// Asks a device what its name does not say: which instructions this build has code for on it, and
// whether its tensor cores compute as kernels/numerics/tensor_core.h says, without which no CPU can
// say what an output of class mma must be. The questions are kernels/numerics/step_set.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/numerics/step_set.h"

namespace fulcrum::cuda {

// The two instructions that arms of class mma are made of.
enum class MmaInstruction { kMmaSync, kWgmma };

// The set's chains on the device: F32 bits [tiles][64][8]. Waits for them. The device must have the
// instruction (kCapMma, kCapSm90a).
absl::StatusOr<std::vector<uint32_t>> RunSteps(int device, cudaStream_t stream,
                                               MmaInstruction instruction,
                                               const numerics::StepSet& set);

// The capabilities whose instructions are in the code that this device runs of this build: a build
// for fewer architectures leaves kernels empty on newer devices, where they would compute nothing.
absl::StatusOr<uint32_t> CompiledCaps(int device, cudaStream_t stream);

// A small set on every instruction that the device's arms use; what a backend does once, when it is
// made. Not measured on a device without tensor cores for BF16. Takes some 10 ms of CPU.
absl::StatusOr<MmaProbe> ProbeMma(int device, cudaStream_t stream, uint32_t caps);

}  // namespace fulcrum::cuda
