// See exact_columns.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/exact_columns.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "kernels/backend_factory.h"
#include "kernels/ladder/ladder.h"
#include "kernels/weights/slice.h"

namespace fulcrum {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> OneThread() {
  auto backends = MakeBackends("cpu", {.cpu_threads = 1});
  if (!backends.ok()) return backends.status();
  return std::move(backends->front());
}

}  // namespace

ExactColumns::ExactColumns()
    : backend_(OneThread()), slot_(backend_.ok() ? (*backend_)->NewSlot() : nullptr) {}

absl::Status ExactColumns::Compute(std::shared_ptr<const WeightSource> source, int64_t column,
                                   int64_t columns, std::span<const uint16_t> activations, int rows,
                                   std::span<float> out) {
  if (!backend_.ok()) return backend_.status();
  Backend& backend = **backend_;
  const auto slice = Slice(std::move(source), {.row = column, .rows = columns});
  if (!slice.ok()) return slice.status();
  const auto weight = backend.Upload(**slice);
  if (!weight.ok()) return weight.status();
  ClassSet exact;
  exact.add(NumericsClass::kExact);
  const Arm* const arm = PickArm(backend.ladder(),
                                 {.format = (*slice)->spec().format,
                                  .policy = Policy::kExact,
                                  .device_caps = backend.device().caps},
                                 exact, LeverSet(), rows);
  if (arm == nullptr) return absl::InternalError("no exact arm on the CPU");
  const std::array output_bytes = {out.size_bytes()};
  if (absl::Status s = slot_->Reserve(activations.size_bytes(), output_bytes); !s.ok()) return s;
  std::memcpy(slot_->activations(), activations.data(), activations.size_bytes());
  const std::array targets = {LaunchTarget{.arm = arm, .weight = weight->get()}};
  const auto ran = backend.Run(*slot_, {.targets = targets, .m = rows, .output_type = DType::kF32});
  if (!ran.ok()) return ran.status();
  std::memcpy(out.data(), slot_->output(0), out.size_bytes());
  return absl::OkStatus();
}

}  // namespace fulcrum
