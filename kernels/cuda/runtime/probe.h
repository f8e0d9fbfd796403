// Tests a device: for which instructions this build has code on it, and whether its tensor cores
// compute as kernels/numerics/tensor_core.h specifies. Only then a CPU can recompute outputs of
// class mma. The test data are of kernels/numerics/step_set.h.
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

// Computes the set's chains on the device and waits for them: F32 bits [tiles][64][8]. The device
// must have the instruction (kCapMma, kCapSm90a).
absl::StatusOr<std::vector<uint32_t>> RunSteps(int device, cudaStream_t stream,
                                               MmaInstruction instruction,
                                               const numerics::StepSet& set);

// The capabilities whose instructions are in the code that this device runs. In a build without the
// device's architecture, kernels that need newer instructions are empty and would compute nothing.
absl::StatusOr<uint32_t> CompiledCaps(int device, cudaStream_t stream);

// Runs a small set on every instruction that the device's arms use. A backend calls this once, when
// it is made. Without BF16 tensor cores nothing is measured. Takes about 10 ms of CPU.
absl::StatusOr<MmaProbe> ProbeMma(int device, cudaStream_t stream, uint32_t caps);

}  // namespace fulcrum::cuda
