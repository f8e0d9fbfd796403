// The vendor's matrix library, opened at run time. Nothing links to it; without it, its arm and its
// rows of the benchmark are missing. One object serves one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/types.h"

namespace fulcrum::cuda {

// y[m][n] = x[m][k] * w[n][k]^T, row i of y at i * output_pitch elements. All device memory.
struct LtProblem {
  int m = 0;
  int64_t n = 0, k = 0;
  const void* weights = nullptr;
  const void* activations = nullptr;
  void* output = nullptr;
  DType output_type = DType::kBf16;
  int64_t output_pitch = 0;
  // Null: both operands are BF16. Else E4M3 with F32 scales: the weights' [n / 128][k / 128], the
  // activations' [k / 128][m].
  const float* weight_scales = nullptr;
  const float* activation_scales = nullptr;
};

// The library multiplies block-scaled activations in multiples of four rows.
inline constexpr int kLibraryRows = 4;
constexpr int LibraryRows(int m) { return (m + kLibraryRows - 1) / kLibraryRows * kLibraryRows; }

// Its workspace on the device: the size that its maker recommends for sm_90.
inline constexpr int64_t kLibraryWorkspaceBytes = int64_t{32} << 20;

// Not thread-safe: the backend uses it under its launch mutex. Products share the workspace, so
// they must be in one stream.
class CublasLt {
 public:
  // When there are more problems than this, all are forgotten and queried again.
  static constexpr size_t kMostPlans = 8192;

  // The calling thread's device must be `device`. UNAVAILABLE, with the reason, when there is no
  // library of these names, or one that is too old, or it does not start on the device.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Open(
      int device, std::span<const char* const> names = Names());
  static std::span<const char* const> Names();
  virtual ~CublasLt() = default;

  // Whether the library has an algorithm for the problem. Queries it once for each M, N, K, output
  // type, pitch and alignment of pointers.
  virtual bool Takes(const LtProblem& problem) = 0;
  // Enqueues the product with the algorithm that the library recommends. False when there is none
  // or its launch fails; from then on Takes is false.
  virtual bool Multiply(const LtProblem& problem, cudaStream_t stream) = 0;

  // Remembered problems, queries of the library, and enqueued products.
  struct Counts {
    size_t plans = 0;
    int64_t asked = 0, products = 0;
  };
  virtual Counts counts() const = 0;
};

}  // namespace fulcrum::cuda
