// Runs every kernel that calls on a weight may need. The runtime loads a kernel at its first
// launch, which takes milliseconds and memory. Warm-up moves that from the first call to the
// upload, which can report a failure.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/runtime/cuda_backend.h"
#include "kernels/cuda/w8a8/cublaslt.h"
#include "kernels/cuda/w8a8/w8a8.h"

namespace fulcrum::cuda {
namespace {

// One M for each kernel of a prefill arm; more rows run the same kernels.
constexpr int kPrefillRows[] = {33, 65};
constexpr int kMostWarmRows = 65;
// A library has kernels for other M too, which it loads at their first call.
constexpr int kWarmRoom = LibraryRows(kMostWarmRows);

// A live launch that arrives during warm-up waits for at most this many runs.
constexpr size_t kRunsAtOnce = 8;

// Every M of a decode batch's piece, since an arm may have a kernel for each, and a few M of
// prefill.
std::vector<int> WarmRows(const Arm& arm) {
  std::vector<int> rows;
  const int last = std::min({arm.m_max, arm.rows_per_launch, kMaxDecodeRows});
  // The rest after full pieces may have fewer rows than m_min.
  const int first = arm.m_max > arm.rows_per_launch ? 1 : arm.m_min;
  for (int m = first; m <= last; ++m) rows.push_back(m);
  if (arm.rows_per_launch > kMaxDecodeRows) {
    rows.insert(rows.end(), std::begin(kPrefillRows), std::end(kPrefillRows));
  }
  return rows;
}

}  // namespace

absl::Status CudaBackend::WarmUp(const CudaWeight& weight) {
  const WeightSpec& spec = weight.spec();
  const KernelShape shape(spec.format, spec.n, spec.k, weight.has_nan());
  {
    absl::MutexLock lock(&launch_mutex_);
    if (warm_.contains(shape)) return absl::OkStatus();
  }
  const int64_t pitch = PaddedK(spec.k);
  absl::StatusOr<DeviceBuffer> activations =
      DeviceBuffer::Make(ordinal_, static_cast<size_t>(kMostWarmRows * pitch * 2));
  absl::StatusOr<DeviceBuffer> output =
      DeviceBuffer::Make(ordinal_, static_cast<size_t>(kWarmRoom * spec.n * 4));
  absl::StatusOr<Event> done = MakeEvent(ordinal_, EventKind::kQuiet);
  absl::Status status = activations.status();
  status.Update(output.status());
  status.Update(done.status());
  if (status.ok()) {
    absl::MutexLock lock(&launch_mutex_);
    context_.programmatic = false;
    status =
        CudaStatus(cudaMemsetAsync(activations->data(), 0, activations->size(), compute_.get()),
                   "cudaMemsetAsync");
  }
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(spec.name, ": warm-up: ", status.message()));
  }
  // The launch selects the tile by M, so all tiles are loaded here.
  if ((device_.caps & kCapBlockScaled) != 0 && spec.format == WeightFormat::kFp8Block128) {
    if (absl::Status s = CudaStatus(LoadW8A8(), "loading of w8a8 kernels"); !s.ok()) return s;
  }
  for (const Arm& arm : ladder()) {
    if (arm.format != spec.format || (arm.needs & ~device_.caps) != 0) continue;
    status = WarmUpArm(arm,
                       {.weight = &weight,
                        .activations = activations->data(),
                        .activation_pitch = pitch,
                        .output = output->data(),
                        .output_pitch = spec.n,
                        .output_room = kWarmRoom},
                       *done);
    if (!status.ok()) {
      // Enqueued operations use the buffers that are freed below.
      if (absl::IsDeadlineExceeded(AwaitEmpty(compute_.get(), kHangLimit))) GiveUp(ordinal_);
      return absl::Status(status.code(),
                          absl::StrCat(spec.name, ": warm-up of arm ", std::string(arm.name), ": ",
                                       status.message()));
    }
  }
  absl::MutexLock lock(&launch_mutex_);
  warm_.insert(shape);
  return absl::OkStatus();
}

absl::Status CudaBackend::WarmUpArm(const Arm& arm, ArmArgs args, const Event& done) {
  // The weights that will be fused with this one are not known here. So it is fused with itself
  // once, as gate and up are, and twice, as q, k and v are. The first call of another combination
  // loads its kernel if it needs another one.
  const FusedWeight itself = {args.weight, args.output, args.output_pitch};
  const std::vector<FusedWeight> fused(arm.fuses ? 2 : 0, itself);
  std::vector<ArmArgs> runs;
  for (const int m : WarmRows(arm)) {
    for (const DType type : {DType::kBf16, DType::kF32}) {
      for (size_t count = 0; count <= fused.size(); ++count) {
        args.m = m;
        args.output_type = type;
        args.fused = std::span(fused).first(count);
        runs.push_back(args);
      }
    }
  }
  for (size_t first = 0; first < runs.size(); first += kRunsAtOnce) {
    const size_t end = std::min(runs.size(), first + kRunsAtOnce);
    {
      absl::MutexLock lock(&launch_mutex_);
      for (size_t i = first; i < end; ++i) {
        if (absl::Status s = EnqueueArm(arm, runs[i], context_); !s.ok()) {
          return absl::Status(s.code(), absl::StrCat("M = ", runs[i].m, ": ", s.message()));
        }
      }
    }
    if (absl::Status s = WaitQuietly(compute_, done); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace fulcrum::cuda
