// See cublaslt.h. The library stores by columns, so its A is our weights transposed, its B our
// activations, and its D our output.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bench/cublaslt.h"

#include <dlfcn.h>

#include <cstdlib>

namespace fulcrum::bench {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

}  // namespace

// clang-format off
#define FULCRUM_LT_FUNCTIONS(X) \
  X(Create) X(Destroy) X(Matmul) X(MatmulAlgoGetHeuristic) X(MatmulDescCreate) \
  X(MatmulDescDestroy) X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy) \
  X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)
// clang-format on

struct CublasLt::Functions {
#define FULCRUM_LT_MEMBER(name) decltype(&cublasLt##name) name = nullptr;
  FULCRUM_LT_FUNCTIONS(FULCRUM_LT_MEMBER)
#undef FULCRUM_LT_MEMBER

  // Empty, or the name of a function that the library lacks.
  std::string Find(void* library) {
#define FULCRUM_LT_FIND(name)                                                           \
  name = reinterpret_cast<decltype(&cublasLt##name)>(dlsym(library, "cublasLt" #name)); \
  if (name == nullptr) return "cublasLt" #name;
    FULCRUM_LT_FUNCTIONS(FULCRUM_LT_FIND)
#undef FULCRUM_LT_FIND
    return "";
  }
};
#undef FULCRUM_LT_FUNCTIONS

std::unique_ptr<CublasLt> CublasLt::Open(std::string* reason) {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    *reason = dlerror();
    return nullptr;
  }
  std::unique_ptr<CublasLt> lt(new CublasLt());
  lt->lt_ = std::make_unique<Functions>();
  if (const std::string missing = lt->lt_->Find(library); !missing.empty()) {
    *reason = "the library lacks " + missing;
    return nullptr;
  }
  if (lt->lt_->Create(&lt->handle_) != CUBLAS_STATUS_SUCCESS ||
      cudaMalloc(&lt->workspace_, kWorkspaceBytes) != cudaSuccess) {
    *reason = "the library does not start on this device";
    return nullptr;
  }
  return lt;
}

CublasLt::~CublasLt() {
  if (weights_ != nullptr) lt_->MatrixLayoutDestroy(weights_);
  if (activations_ != nullptr) lt_->MatrixLayoutDestroy(activations_);
  if (output_ != nullptr) lt_->MatrixLayoutDestroy(output_);
  if (handle_ != nullptr) lt_->Destroy(handle_);
  cudaFree(workspace_);
}

bool CublasLt::Recommend(const LtProblem& p, cublasLtMatmulDesc_t operation) {
  const bool scaled = p.weight_scales != nullptr;
  if (m_ == p.m && n_ == p.n && k_ == p.k && scaled_ == scaled) return found_;
  m_ = p.m;
  n_ = p.n;
  k_ = p.k;
  scaled_ = scaled;
  found_ = false;
  for (cublasLtMatrixLayout_t* layout : {&weights_, &activations_, &output_}) {
    if (*layout != nullptr) lt_->MatrixLayoutDestroy(*layout);
    *layout = nullptr;
  }
  const cudaDataType_t type = scaled ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  const auto rows = static_cast<uint64_t>(p.m), n = static_cast<uint64_t>(p.n);
  const auto k = static_cast<uint64_t>(p.k);
  if (lt_->MatrixLayoutCreate(&weights_, type, k, n, p.k) != CUBLAS_STATUS_SUCCESS ||
      lt_->MatrixLayoutCreate(&activations_, type, k, rows, p.k) != CUBLAS_STATUS_SUCCESS ||
      lt_->MatrixLayoutCreate(&output_, CUDA_R_16BF, n, rows, p.n) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  cublasLtMatmulPreference_t preference = nullptr;
  if (lt_->MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return false;
  lt_->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                    &kWorkspaceBytes, sizeof(kWorkspaceBytes));
  int count = 0;
  const cublasStatus_t status = lt_->MatmulAlgoGetHeuristic(
      handle_, operation, weights_, activations_, output_, output_, preference, 1, &best_, &count);
  lt_->MatmulPreferenceDestroy(preference);
  found_ = status == CUBLAS_STATUS_SUCCESS && count == 1;
  return found_;
}

bool CublasLt::Multiply(const LtProblem& p, cudaStream_t stream) {
  cublasLtMatmulDesc_t operation = nullptr;
  if (lt_->MatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return lt_->MatmulDescSetAttribute(operation, attribute, &value, sizeof(value)) ==
           CUBLAS_STATUS_SUCCESS;
  };
  const int32_t transposed = CUBLAS_OP_T;
  bool ok = set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
  if (p.weight_scales != nullptr) {
    const int32_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const int32_t vectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    ok = ok && set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, blocks) &&
         set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, vectors) &&
         set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.weight_scales) &&
         set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.activation_scales);
  }
  const float one = 1, zero = 0;
  ok = ok && Recommend(p, operation) &&
       lt_->Matmul(handle_, operation, &one, p.weights, weights_, p.activations, activations_,
                   &zero, p.output, output_, p.output, output_, &best_.algo, workspace_,
                   kWorkspaceBytes, stream) == CUBLAS_STATUS_SUCCESS;
  lt_->MatmulDescDestroy(operation);
  return ok;
}

}  // namespace fulcrum::bench
