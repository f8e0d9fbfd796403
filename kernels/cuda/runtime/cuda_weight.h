// An uploaded weight: the owner of the memory of launch.h's CudaWeight. layout.h describes the
// layout, staging.h copies the rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/runtime/scrubber.h"
#include "kernels/cuda/runtime/staging.h"

namespace fulcrum::cuda {

class UploadedWeight : public CudaWeight {
 public:
  // Whether Load can take the source: INVALID_ARGUMENT when it is not a whole weight.
  static absl::Status Check(const WeightSource& source);
  // with_rows: an fp8 weight keeps the second copy that class w8a8 reads. Requires a checked
  // source. Returns the source's errors, and RESOURCE_EXHAUSTED when there is no memory.
  static absl::StatusOr<std::shared_ptr<UploadedWeight>> Load(const WeightSource& source,
                                                              bool with_rows, int device,
                                                              Staging& staging,
                                                              std::shared_ptr<Scrubber> scrubber);
  static int64_t Bytes(const WeightSpec& spec, bool with_rows = false);

  absl::StatusOr<uint64_t> Checksum() const override;
  absl::Status FlipBit(int64_t byte_offset, int bit) override;

 private:
  UploadedWeight(WeightSpec spec, bool with_rows, DeviceBuffer buffer,
                 std::shared_ptr<Scrubber> scrubber);

  DeviceBuffer buffer_;
  std::shared_ptr<Scrubber> scrubber_;
};

}  // namespace fulcrum::cuda
