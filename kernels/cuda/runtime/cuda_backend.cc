// Makes backends of devices, with their memory budgets, and uploads weights. Launches are in
// run.cc, warm-up is in warm_up.cc.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/cuda_backend.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/arms.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/device_query.h"
#include "kernels/cuda/measured.h"
#include "kernels/cuda/runtime/probe.h"
#include "kernels/ladder/ladder.h"

namespace fulcrum::cuda {
namespace {

// An automatic budget leaves this free for slots, warm-up buffers, kernels that are loaded later,
// and the rounding of allocations.
constexpr int64_t kReserveBytes = int64_t{1} << 30;

bool CanRun(const DeviceInfo& device, const Arm& arm) { return (arm.needs & ~device.caps) == 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Make(int ordinal, const DeviceInfo& info,
                                                               int64_t memory_budget_bytes,
                                                               bool w8a8, bool library) {
  if (memory_budget_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cuda: a budget of ", memory_budget_bytes,
                                                   " bytes; expected 0 (automatic) or more"));
  }
  std::unique_ptr<CudaBackend> backend(new CudaBackend(ordinal, info, w8a8));
  if (absl::Status status = backend->Open(memory_budget_bytes, library); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(info.id, ": ", status.message()));
  }
  return backend;
}

CudaBackend::CudaBackend(int ordinal, const DeviceInfo& info, bool w8a8)
    : ordinal_(ordinal), device_(info), resident_bytes_(std::make_shared<std::atomic<int64_t>>(0)) {
  if (w8a8 && (info.caps & kCapSm90a) != 0) device_.caps |= kCapBlockScaled;
}

CudaBackend::~CudaBackend() {
  // Launches must have ended before the workspace is freed.
  if (compute_.get() != nullptr && SetDevice(ordinal_).ok() &&
      absl::IsDeadlineExceeded(AwaitEmpty(compute_.get(), kHangLimit))) {
    GiveUp(ordinal_);
  }
}

absl::Status CudaBackend::Open(int64_t memory_budget_bytes, bool library) {
  absl::StatusOr<Stream> compute = MakeStream(ordinal_, Priority::kLaunches);
  if (!compute.ok()) return compute.status();
  compute_ = *std::move(compute);
  if (absl::Status s = Grow(workspace_, ordinal_, kWorkspaceBytes); !s.ok()) return s;
  if (absl::Status s = Grow(scratch_, ordinal_, kScratchBytes); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<Staging>> staging = Staging::Make(ordinal_);
  if (!staging.ok()) return staging.status();
  staging_ = *std::move(staging);
  absl::StatusOr<std::shared_ptr<Scrubber>> scrubber = Scrubber::Make(ordinal_);
  if (!scrubber.ok()) return scrubber.status();
  scrubber_ = *std::move(scrubber);

  const absl::StatusOr<uint32_t> compiled = CompiledCaps(ordinal_, compute_.get());
  if (!compiled.ok()) return compiled.status();
  device_.caps &= *compiled | kCapBlockScaled;  // the caller decides about block scales
  // Before the automatic budget is computed, which must not include the library's workspace.
  if (library && keeps_rows()) OpenLibrary();
  if (WarpRowsMeasuredFaster(device_.description)) device_.caps |= kCapFasterArms;
  const absl::StatusOr<MmaProbe> probe = ProbeMma(ordinal_, compute_.get(), device_.caps);
  if (!probe.ok()) return probe.status();
  device_.mma_probe = *probe;

  absl::MutexLock lock(&launch_mutex_);
  absl::StatusOr<CudaContext> context = ContextOf(ordinal_, device_);
  if (!context.ok()) return context.status();
  context_ = *context;
  context_.stream = compute_.get();
  context_.workspace = workspace_.data();
  context_.workspace_bytes = static_cast<int64_t>(workspace_.size());
  context_.scratch = scratch_.data();
  context_.scratch_bytes = static_cast<int64_t>(scratch_.size());
  context_.library = library_.get();
  has_programmatic_ = context_.has_bulk_copies;
  if (absl::Status s = CudaStatus(
          cudaMemsetAsync(workspace_.data(), kEmptySentinelByte, workspace_.size(), compute_.get()),
          "cudaMemsetAsync");
      !s.ok()) {
    return s;
  }
  if (absl::Status s = CudaStatus(cudaStreamSynchronize(compute_.get()), "cudaStreamSynchronize");
      !s.ok()) {
    return s;
  }
  size_t free_bytes = 0, total_bytes = 0;
  if (absl::Status s = CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
      !s.ok()) {
    return s;
  }
  // At least 1, since 0 means "not limited".
  device_.memory_bytes =
      memory_budget_bytes > 0
          ? memory_budget_bytes
          : std::max<int64_t>(1, static_cast<int64_t>(free_bytes) - kReserveBytes);
  return absl::OkStatus();
}

void CudaBackend::OpenLibrary() {
  absl::StatusOr<std::unique_ptr<CublasLt>> opened = CublasLt::Open(ordinal_);
  if (!opened.ok()) {
    device_.library_missing = std::string(opened.status().message());
    return;
  }
  library_ = *std::move(opened);
  device_.caps |= kCapLibrary;
}

std::span<const Arm> CudaBackend::ladder() const { return Arms(); }

absl::Status CudaBackend::Enter() {
  if (!healthy()) {
    return absl::UnavailableError(absl::StrCat(
        device_.id, ": lost after a device error; the node must be restarted to use it again"));
  }
  absl::Status status = SetDevice(ordinal_);
  if (!status.ok()) NoteFailure();
  return status;
}

void CudaBackend::NoteFailure() {
  // An error that breaks the context is returned by every later call too; other errors are not.
  cudaGetLastError();
  const cudaError_t answer = cudaStreamQuery(compute_.get());
  cudaGetLastError();
  if (answer != cudaSuccess && answer != cudaErrorNotReady) healthy_ = false;
}

absl::StatusOr<std::shared_ptr<ResidentWeight>> CudaBackend::Upload(const WeightSource& source) {
  const WeightSpec& spec = source.spec();
  if (absl::Status status = UploadedWeight::Check(source); !status.ok()) return status;
  if (absl::Status status = Enter(); !status.ok()) return status;
  const int64_t bytes = ResidentBytes(spec);
  const int64_t before = resident_bytes_->fetch_add(bytes);
  // Returns the bytes to the budget. The deleter of the weight calls it too.
  const auto release = [counter = resident_bytes_, bytes] { counter->fetch_sub(bytes); };
  if (before + bytes > device_.memory_bytes) {
    release();
    return absl::ResourceExhaustedError(
        absl::StrCat(spec.name, ": needs ", bytes, " bytes on ", device_.id, ", ",
                     device_.memory_bytes - before, " of the budget of ", device_.memory_bytes,
                     " are left; unload a shard or raise the budget"));
  }
  absl::StatusOr<std::shared_ptr<UploadedWeight>> weight =
      UploadedWeight::Load(source, keeps_rows(), ordinal_, *staging_, scrubber_);
  absl::Status status = weight.ok() ? WarmUp(**weight) : weight.status();
  if (!status.ok()) {
    if (weight.ok()) weight->reset();
    release();
    NoteFailure();
    return status;
  }
  UploadedWeight* const raw = weight->get();
  return std::shared_ptr<ResidentWeight>(
      raw, [owner = *std::move(weight), release](ResidentWeight*) mutable {
        owner.reset();
        release();
      });
}

Backend::LaunchShape CudaBackend::Shape(const Arm& arm, const WeightSpec& spec, int m) const {
  const int64_t tiles = (spec.n + kTileRows - 1) / kTileRows;
  const auto pieces = static_cast<int64_t>(Pieces(arm, m).size());
  return {.blocks = tiles,
          .waves = static_cast<double>(tiles) / std::max(1, device_.compute_units),
          .bytes = pieces * ResidentBytes(spec)};
}

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeCudaBackends(int64_t memory_budget_bytes,
                                                                       bool w8a8,
                                                                       uint32_t without_caps,
                                                                       bool library) {
  absl::StatusOr<std::vector<DeviceInfo>> devices = QueryDevices();
  if (!devices.ok()) return devices.status();
  for (DeviceInfo& device : *devices) device.caps &= ~without_caps;
  if (devices->empty()) {
    return absl::NotFoundError(
        "backend cuda: this machine has no CUDA device, or no driver for it");
  }
  std::vector<std::unique_ptr<Backend>> backends;
  int first = 0;
  for (size_t i = 0; i < devices->size(); ++i) {
    const DeviceInfo& device = (*devices)[i];
    if (!std::ranges::any_of(Arms(), [&](const Arm& arm) { return CanRun(device, arm); })) continue;
    absl::StatusOr<std::unique_ptr<CudaBackend>> backend =
        CudaBackend::Make(static_cast<int>(i), device, memory_budget_bytes, w8a8,
                          library && (without_caps & kCapLibrary) == 0);
    if (!backend.ok()) return backend.status();
    if (backends.empty()) first = static_cast<int>(i);
    backends.push_back(*std::move(backend));
  }
  if (!backends.empty()) {
    // The calling thread ends with the first device current, as with one device.
    if (absl::Status s = SetDevice(first); !s.ok()) return s;
    return backends;
  }
  const std::string found =
      absl::StrJoin(*devices, ", ", [](std::string* out, const DeviceInfo& device) {
        absl::StrAppend(out, device.id, " ", device.description);
      });
  return absl::NotFoundError(absl::StrCat("backend cuda: found ", found,
                                          ", but this build has no CUDA arms for it; use backend "
                                          "cpu"));
}

}  // namespace fulcrum::cuda
