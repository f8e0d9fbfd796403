// The vendor's matrix library as a peer, opened at run time: nothing here links to it, and a
// machine without it runs the benchmark without its rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fulcrum::bench {

// y[m][n] = x[m][k] * w[n][k]^T, BF16 out. All device memory.
struct LtProblem {
  int m = 0;
  int64_t n = 0, k = 0;
  const void* weights = nullptr;
  const void* activations = nullptr;
  void* output = nullptr;
  // Null: both operands are BF16. Else E4M3 with F32 scales: the weights' [n / 128][k / 128], the
  // activations' [k / 128][m].
  const float* weight_scales = nullptr;
  const float* activation_scales = nullptr;
};

class CublasLt {
 public:
  // Null with a reason when the library or the device is not there.
  static std::unique_ptr<CublasLt> Open(std::string* reason);
  ~CublasLt();

  // Enqueues the product on the algorithm that the library itself recommends. False when it has
  // none for the problem. Problems that differ in pointers only share the recommendation.
  bool Multiply(const LtProblem& problem, cudaStream_t stream);

 private:
  CublasLt() = default;
  struct Functions;
  bool Recommend(const LtProblem& problem, cublasLtMatmulDesc_t operation);

  std::unique_ptr<Functions> lt_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  // Of the problem that was recommended for last.
  int m_ = 0;
  int64_t n_ = 0, k_ = 0;
  bool scaled_ = false, found_ = false;
  cublasLtMatrixLayout_t weights_ = nullptr, activations_ = nullptr, output_ = nullptr;
  cublasLtMatmulHeuristicResult_t best_ = {};
};

}  // namespace fulcrum::bench
