// See cublaslt.h. The library stores by columns, so its A is our weights transposed, its B our
// activations, and its D our output.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/w8a8/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/layout/layout.h"

// A toolkit may lack the library's header, or have one without block scales.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#if CUBLAS_VERSION >= 120900
#define FULCRUM_HAS_CUBLASLT
#endif
#endif

namespace fulcrum::cuda {

std::span<const char* const> CublasLt::Names() {
  static constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  return kNames;
}

#ifdef FULCRUM_HAS_CUBLASLT
namespace {

constexpr size_t kOldestVersion = 120900;  // the first with block scales of 128

// 8-bit operands and output rows begin at multiples of this many bytes.
constexpr uintptr_t kLeastAlignment = 16;
// No algorithm requires more than this.
constexpr uintptr_t kMostAlignment = 256;
// The library expects rows of weight scales that are padded to a multiple of this many. Ours are
// not padded, so other block counts would read the scales of other blocks.
constexpr int64_t kScalesTogether = 4;

// clang-format off
#define FULCRUM_LT_FUNCTIONS(X) \
  X(GetVersion) X(Create) X(Destroy) X(Matmul) X(MatmulAlgoGetHeuristic) X(MatmulDescCreate) \
  X(MatmulDescDestroy) X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy) \
  X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)
// clang-format on

struct Functions {
// NOLINTBEGIN(bugprone-macro-parentheses): names, which parentheses would break
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
    // NOLINTEND(bugprone-macro-parentheses)
    return "";
  }
};
#undef FULCRUM_LT_FUNCTIONS

uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min(address & -address, kMostAlignment));
}

// Owns a layout, a description or a preference that the library made.
template <class Handle>
class Owned {
 public:
  explicit Owned(cublasStatus_t (*destroy)(Handle)) : destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* made() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  cublasStatus_t (*const destroy_)(Handle);
  Handle handle_ = nullptr;
};

class Library final : public CublasLt {
 public:
  Library(int device, const Functions& lt, DeviceBuffer workspace)
      : device_(device), lt_(lt), workspace_(std::move(workspace)) {}
  ~Library() override {
    // Destroying it waits for the device, as freeing memory does.
    if (handle_ == nullptr || GivenUp(device_)) return;
    cudaSetDevice(device_);
    lt_.Destroy(handle_);
  }
  bool Start() { return lt_.Create(&handle_) == CUBLAS_STATUS_SUCCESS; }

  bool Takes(const LtProblem& p) override {
    Call call(lt_);
    return Suits(p) && call.Describe(p) && PlanOf(p, call).found;
  }

  bool Multiply(const LtProblem& p, cudaStream_t stream) override {
    Call call(lt_);
    if (!Suits(p) || !call.Describe(p)) return false;
    Plan& plan = PlanOf(p, call);
    if (!plan.found) return false;
    const float one = 1, zero = 0;
    plan.found = lt_.Matmul(handle_, call.operation.get(), &one, p.weights, call.weights.get(),
                            p.activations, call.activations.get(), &zero, p.output,
                            call.output.get(), p.output, call.output.get(), &plan.algorithm,
                            workspace_.data(), workspace_.size(), stream) == CUBLAS_STATUS_SUCCESS;
    counts_.products += plan.found ? 1 : 0;
    return plan.found;
  }

  Counts counts() const override {
    Counts counts = counts_;
    counts.plans = plans_.size();
    return counts;
  }

 private:
  struct Plan {
    bool found = false;
    cublasLtMatmulAlgo_t algorithm = {};
  };
  // M, N, K, whether there are scales, output type, pitch, the output's alignment and the least
  // alignment of the rest.
  using Key = std::tuple<int, int64_t, int64_t, bool, DType, int64_t, uint32_t, uint32_t>;

  // A problem in the library's terms.
  struct Call {
    explicit Call(const Functions& functions)
        : lt(functions),
          operation(lt.MatmulDescDestroy),
          weights(lt.MatrixLayoutDestroy),
          activations(lt.MatrixLayoutDestroy),
          output(lt.MatrixLayoutDestroy) {}

    bool Describe(const LtProblem& p) {
      const bool scaled = p.weight_scales != nullptr;
      const cudaDataType_t type = scaled ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
      const cudaDataType_t stored = p.output_type == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
      const auto rows = static_cast<uint64_t>(p.m), n = static_cast<uint64_t>(p.n);
      const auto k = static_cast<uint64_t>(p.k);
      const int32_t transposed = CUBLAS_OP_T;
      if (lt.MatrixLayoutCreate(weights.made(), type, k, n, p.k) != CUBLAS_STATUS_SUCCESS ||
          lt.MatrixLayoutCreate(activations.made(), type, k, rows, p.k) != CUBLAS_STATUS_SUCCESS ||
          lt.MatrixLayoutCreate(output.made(), stored, n, rows, p.output_pitch) !=
              CUBLAS_STATUS_SUCCESS ||
          lt.MatmulDescCreate(operation.made(), CUBLAS_COMPUTE_32F, CUDA_R_32F) !=
              CUBLAS_STATUS_SUCCESS ||
          !Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed)) {
        return false;
      }
      if (!scaled) return true;
      const int32_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
      const int32_t vectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
      return Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, blocks) &&
             Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, vectors) &&
             Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.weight_scales) &&
             Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.activation_scales);
    }
    template <class Value>
    bool Set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
      return lt.MatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)) ==
             CUBLAS_STATUS_SUCCESS;
    }

    const Functions& lt;
    Owned<cublasLtMatmulDesc_t> operation;
    Owned<cublasLtMatrixLayout_t> weights, activations, output;
  };

  // The library's requirements, including those on scales that it does not check.
  static bool Suits(const LtProblem& p) {
    if (p.weight_scales == nullptr) return true;
    return p.m % kLibraryRows == 0 && p.k % kBlockK == 0 && p.k / kBlockK % kScalesTogether == 0 &&
           p.output_pitch * static_cast<int64_t>(SizeOf(p.output_type)) % kLeastAlignment == 0 &&
           OperandAlignment(p) >= kLeastAlignment && AlignmentOf(p.output) >= kLeastAlignment &&
           AlignmentOf(p.weight_scales) >= kLeastAlignment &&
           AlignmentOf(p.activation_scales) >= kLeastAlignment;
  }
  static uint32_t OperandAlignment(const LtProblem& p) {
    return std::min(AlignmentOf(p.weights), AlignmentOf(p.activations));
  }

  Plan& PlanOf(const LtProblem& p, const Call& call) {
    const Key key = {p.m,
                     p.n,
                     p.k,
                     p.weight_scales != nullptr,
                     p.output_type,
                     p.output_pitch,
                     AlignmentOf(p.output),
                     OperandAlignment(p)};
    if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
    if (plans_.size() >= kMostPlans) plans_.clear();
    Plan& plan = plans_[key];
    Ask(p, call, plan);
    return plan;
  }

  void Ask(const LtProblem& p, const Call& call, Plan& plan) {
    ++counts_.asked;
    Owned<cublasLtMatmulPreference_t> preference(lt_.MatmulPreferenceDestroy);
    if (lt_.MatmulPreferenceCreate(preference.made()) != CUBLAS_STATUS_SUCCESS) return;
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return lt_.MatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)) ==
             CUBLAS_STATUS_SUCCESS;
    };
    const uint32_t operands = OperandAlignment(p), output = AlignmentOf(p.output);
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    plan.found =
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_.size()) &&
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, operands) &&
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, operands) &&
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, output) &&
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, output) &&
        lt_.MatmulAlgoGetHeuristic(handle_, call.operation.get(), call.weights.get(),
                                   call.activations.get(), call.output.get(), call.output.get(),
                                   preference.get(), 1, &best, &count) == CUBLAS_STATUS_SUCCESS &&
        count == 1 && best.state == CUBLAS_STATUS_SUCCESS;
    plan.algorithm = best.algo;
  }

  const int device_;
  const Functions lt_;
  DeviceBuffer workspace_;
  cublasLtHandle_t handle_ = nullptr;
  absl::flat_hash_map<Key, Plan> plans_;
  Counts counts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Open(int device,
                                                         std::span<const char* const> names) {
  void* library = nullptr;
  std::string said = "no names to look for";
  for (const char* const name : names) {
    if (library != nullptr) break;
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) said = dlerror();
  }
  if (library == nullptr) return absl::UnavailableError(said);
  // The library stays loaded: other code may have opened it too, and unloading it beside a live
  // context is not safe.
  Functions lt;
  if (const std::string missing = lt.Find(library); !missing.empty()) {
    return absl::UnavailableError(absl::StrCat("the library lacks ", missing));
  }
  if (lt.GetVersion() < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat("the library is of version ", lt.GetVersion(),
                                               ", block scales came with ", kOldestVersion));
  }
  absl::StatusOr<DeviceBuffer> workspace =
      DeviceBuffer::Make(device, static_cast<size_t>(kLibraryWorkspaceBytes));
  if (!workspace.ok()) return absl::UnavailableError(workspace.status().message());
  auto made = std::make_unique<Library>(device, lt, *std::move(workspace));
  if (!made->Start()) return absl::UnavailableError("the library does not start on this device");
  return made;
}

#else

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Open(int, std::span<const char* const>) {
  return absl::UnavailableError("this program was built without cublasLt.h 12.9 or later");
}

#endif

}  // namespace fulcrum::cuda
