// The vendor's matrix library, opened at run time: nothing links to it, and a machine without it
// runs without its arm and its rows of the benchmark. One object is one device's.
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

// The library multiplies block-scaled activations by four rows only.
inline constexpr int kLibraryRows = 4;
constexpr int LibraryRows(int m) { return (m + kLibraryRows - 1) / kLibraryRows * kLibraryRows; }

// What it may use on the device beside its operands: what its maker recommends for sm_90.
inline constexpr int64_t kLibraryWorkspaceBytes = int64_t{32} << 20;

// Not safe for concurrent use: a device's is used under its backend's launch mutex. Products share
// the workspace, so they go into one stream.
class CublasLt {
 public:
  // More problems than these are forgotten all at once, and asked for again.
  static constexpr size_t kMostPlans = 8192;

  // The calling thread's device must be `device`. UNAVAILABLE, with the reason, when there is no
  // library of these names, or one that is too old, or it does not start on the device.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Open(
      int device, std::span<const char* const> names = Names());
  static std::span<const char* const> Names();
  virtual ~CublasLt() = default;

  // Whether it has an algorithm for the problem. Asks the library once for each M, N, K, output
  // type, pitch and alignment; pointers beyond their alignment make no difference.
  virtual bool Takes(const LtProblem& problem) = 0;
  // Enqueues the product on the algorithm that the library recommends. False when it has none, or
  // fails to launch it: then Takes is false from there on.
  virtual bool Multiply(const LtProblem& problem, cudaStream_t stream) = 0;

  // How many problems it remembers, how often the library was asked, and what it enqueued.
  struct Counts {
    size_t plans = 0;
    int64_t asked = 0, products = 0;
  };
  virtual Counts counts() const = 0;
};

}  // namespace fulcrum::cuda
