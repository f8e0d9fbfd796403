// Some columns of a weight's product in class exact, computed by the CPU's arms on the thread that
// asks: many times faster than the plain loops of kernels/numerics/oracle.h, whose bits they have.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

// For one thread at a time.
class ExactColumns {
 public:
  ExactColumns();

  // activations: BF16 [rows, K], as many rows as a decode batch has or fewer. out: F32
  // [rows, columns]. The columns begin on a multiple of 128 and end on one or at N. Reads the
  // weight from its source; the source's errors pass through.
  absl::Status Compute(std::shared_ptr<const WeightSource> source, int64_t column, int64_t columns,
                       std::span<const uint16_t> activations, int rows, std::span<float> out);

 private:
  const absl::StatusOr<std::unique_ptr<Backend>> backend_;
  std::unique_ptr<LaunchSlot> slot_;
};

}  // namespace fulcrum
