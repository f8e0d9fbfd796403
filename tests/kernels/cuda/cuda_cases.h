// What the CUDA backend's tests share: a device or the reason why there is none, synthetic weights,
// and launches on the arm that the ladder takes with every lever closed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/cuda_backend.h"
#include "kernels/ladder/ladder.h"
#include "kernels/weights/synthetic.h"
#include "tests/support/arm_cases.h"
#include "tests/support/random_weights.h"

namespace fulcrum::cuda {

using Bytes = std::vector<std::byte>;
using Source = std::shared_ptr<const WeightSource>;

inline test::BackendUnderTest Open(int64_t budget = 0) {
  absl::StatusOr<std::vector<std::unique_ptr<Backend>>> made = MakeCudaBackends(budget);
  test::BackendUnderTest result{.name = "cuda", .backend = nullptr, .missing = ""};
  if (made.ok()) {
    result.backend = std::move(made->front());
  } else {
    result.missing = std::string(made.status().message());
  }
  return result;
}

inline Source Synthetic(int64_t n, int64_t k, WeightFormat format = WeightFormat::kFp8Block128,
                        uint64_t seed = 1) {
  absl::StatusOr<Source> made =
      SyntheticWeight({.name = "w", .format = format, .n = n, .k = k}, seed);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// What the ladder runs with every lever closed: exact.
inline const Arm& ExactArm(const Backend& backend, int m, Step step = Step::kDecode,
                           WeightFormat format = WeightFormat::kFp8Block128) {
  const LadderQuery query = {.format = format,
                             .step = step,
                             .policy = Policy::kExact,
                             .device_caps = backend.device().caps};
  const LeverSet closed;
  const ClassSet classes = AllowedClasses(backend.ladder(), query, closed);
  const Arm* const arm = PickArm(backend.ladder(), query, classes, closed, m);
  if (arm != nullptr) return *arm;
  ADD_FAILURE() << "no exact arm for " << Name(format) << " " << Name(step) << " M = " << m;
  return backend.ladder().front();
}

inline std::vector<uint16_t> Gaussian(int m, int64_t k, uint64_t seed = 2) {
  return test::RandomActivations(m, k, test::ActivationKind::kGaussian, seed);
}

// One launch of one weight on its exact arm; empty when it failed.
inline Bytes RunExact(Backend& backend, const ResidentWeight& weight, std::span<const uint16_t> x,
                      int m, Step step = Step::kDecode) {
  const Arm& arm = ExactArm(backend, m, step, weight.spec().format);
  absl::StatusOr<Bytes> out = test::RunPoisoned(backend, arm, weight, x, m, DType::kF32);
  EXPECT_TRUE(out.ok()) << out.status();
  return out.ok() ? *std::move(out) : Bytes();
}

// Columns [first, first + count) of one row of an [m, n] F32 output.
inline Bytes Columns(const Bytes& output, int64_t n, int row, int64_t first, int64_t count) {
  const auto at = output.begin() + (row * n + first) * 4;
  return Bytes(at, at + count * 4);
}

}  // namespace fulcrum::cuda
