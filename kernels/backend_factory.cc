// The one file that knows which backends were compiled in.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend_factory.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#ifdef FULCRUM_HAS_CUDA
#include "kernels/cuda/runtime/cuda_backend.h"
#endif

namespace fulcrum {
namespace {

using Backends = std::vector<std::unique_ptr<Backend>>;

absl::StatusOr<Backends> MakeCpu(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<cpu::CpuBackend>> backend =
      cpu::CpuBackend::Make(options.cpu_threads, options.memory_budget_bytes);
  if (!backend.ok()) return backend.status();
  Backends backends;
  backends.push_back(*std::move(backend));
  return backends;
}

// Every CUDA device; NOT_FOUND when there is none.
absl::StatusOr<Backends> MakeCuda([[maybe_unused]] const BackendOptions& options) {
#ifdef FULCRUM_HAS_CUDA
  return cuda::MakeCudaBackends(options.memory_budget_bytes, options.w8a8, options.without_caps,
                                options.w8a8_library);
#else
  return absl::NotFoundError(
      "backend cuda: this program was built without it; build with FULCRUM_CUDA=ON");
#endif
}

}  // namespace

std::vector<std::string_view> CompiledBackends() {
  return {
      "cpu",
#ifdef FULCRUM_HAS_CUDA
      "cuda",
#endif
  };
}

absl::StatusOr<Backends> MakeBackends(std::string_view which, const BackendOptions& options) {
  if (which == "cpu") return MakeCpu(options);
  if (which == "cuda") return MakeCuda(options);
  if (which != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("backend \"", std::string(which), "\": expected auto, cpu or cuda"));
  }
  absl::StatusOr<Backends> cuda = MakeCuda(options);
  return absl::IsNotFound(cuda.status()) ? MakeCpu(options) : std::move(cuda);
}

}  // namespace fulcrum
