// CudaBackend::Run: selects the way of a launch (slot.h) and enqueues its operations.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/spin_then_block_lock.h"
#include "kernels/cuda/runtime/cuda_backend.h"
#include "kernels/ladder/ladder.h"

namespace fulcrum::cuda {
namespace {

// The constants of that selection, measured on an H200 behind PCIe 5 (bench/results/h200.md,
// "Run"). Copies by kernels and by copy engines have about the same bandwidth.
constexpr double kCopyBytesPerSecond = 50e9;
double ReadSeconds(const Launch& launch) {  // seconds of reading the weights
  double bytes = 0;
  for (const LaunchTarget& target : launch.targets) {
    bytes += static_cast<double>(target.weight->resident_bytes());
  }
  return bytes / 4.4e12;
}
// A direct launch occupies the compute stream with its copies too. An overlapped launch occupies
// the host with driver calls, which slots make in turn. Both cost the same when reading and copying
// take this long. With two launches in flight no earlier launch hides the driver calls.
constexpr double kOverlapSeconds = 6e-6, kOverlapSecondsOfTwo = 9e-6;
// For a single launch in flight, copy engines are faster only from this size on.
constexpr size_t kMaxDirectBytes = size_t{4} << 20;
// The time of a copy in by a copy engine with the launch behind it; the time of a kernel beside its
// reading.
constexpr double kCopyInSeconds = 12e-6, kKernelSeconds = 2e-6;

}  // namespace

bool CudaBackend::RunsDirect(const CudaSlot& slot, const Launch& launch, int running) const {
  const size_t copied = slot.CopiedBytes(launch);
  if (launch.targets.size() > size_t{kMaxCopyParts} || copied > kMaxDirectBytes) return false;
  if (run_options_.way != RunOptions::Way::kFastest) {
    return run_options_.way == RunOptions::Way::kDirect;
  }
  const double seconds = static_cast<double>(copied) / kCopyBytesPerSecond + ReadSeconds(launch);
  return running == 1 || seconds < (running == 2 ? kOverlapSecondsOfTwo : kOverlapSeconds);
}

absl::StatusOr<LaunchTimes> CudaBackend::Run(LaunchSlot& slot, const Launch& launch) {
  auto& cuda_slot = static_cast<CudaSlot&>(slot);
  if (absl::Status s = cuda_slot.Check(launch); !s.ok()) return s;
  if (absl::Status s = Enter(); !s.ok()) return s;
  const int running = running_.fetch_add(1, std::memory_order_relaxed) + 1;
  const absl::Cleanup ended = [this] { running_.fetch_sub(1, std::memory_order_relaxed); };
  if (absl::Status s = cuda_slot.Prepare(launch, run_options_.host_outputs, running == 1); !s.ok())
    return s;
  absl::StatusOr<LaunchTimes> times = RunsDirect(cuda_slot, launch, running)
                                          ? RunDirect(cuda_slot, launch)
                                          : RunOverlapped(cuda_slot, launch, running);
  if (!times.ok()) return AfterFailure(cuda_slot, times.status());
  return times;
}

absl::StatusOr<LaunchTimes> CudaBackend::RunDirect(CudaSlot& slot, const Launch& launch) {
  const cudaGraphExec_t graph = GraphOf(slot, launch);
  slot.ExpectOutputs(launch);
  uint64_t number = 0;
  {
    const SpinThenBlockLock lock(&launch_mutex_);
    number = timeline_.Next();
    absl::Status status;
    if (graph != nullptr) {
      status = CudaStatus(cudaGraphLaunch(graph, compute_.get()), "cudaGraphLaunch");
      context_.programmatic = false;
    } else {
      status = EnqueueDirect(slot, launch, context_);
    }
    if (!status.ok()) return status;
  }
  absl::StatusOr<LaunchTimes> times = slot.AwaitOutputs(compute_.get(), run_options_.hang_limit);
  timeline_.Ended(number, std::chrono::steady_clock::now());
  return times;
}

absl::StatusOr<LaunchTimes> CudaBackend::RunOverlapped(CudaSlot& slot, const Launch& launch,
                                                       int running) {
  if (absl::Status s = slot.CopyIn(launch); !s.ok()) return s;
  // When earlier launches keep the device busy meanwhile, this thread waits for the copy instead of
  // the stream. Then the kernels can follow those of the launch before programmatically.
  if (has_programmatic_ && run_options_.programmatic &&
      (running - 2) * (kKernelSeconds + ReadSeconds(launch)) > kCopyInSeconds) {
    if (absl::Status s = slot.AwaitIn(run_options_.hang_limit); !s.ok()) return s;
  }
  uint64_t number = 0;
  {
    const SpinThenBlockLock lock(&launch_mutex_);
    number = timeline_.Next();
    const absl::StatusOr<bool> there = slot.BeginKernels(compute_.get());
    if (!there.ok()) return there.status();
    // A kernel that is launched programmatically would not wait for the copy engine.
    context_.programmatic = context_.programmatic && *there;
    if (absl::Status s = EnqueueArms(slot, launch, context_); !s.ok()) return s;
    if (absl::Status s = slot.EndKernels(compute_.get()); !s.ok()) return s;
  }
  if (absl::Status s = slot.CopyOut(launch); !s.ok()) return s;
  return slot.Finish(timeline_, number, run_options_.hang_limit);
}

cudaGraphExec_t CudaBackend::GraphOf(CudaSlot& slot, const Launch& launch) {
  if (!run_options_.graphs || launch.m > kMaxDecodeRows) return nullptr;  // these M seldom recur
  for (const LaunchTarget& target : launch.targets) {
    // A library's launches cannot be captured safely.
    if (target.arm->numerics == NumericsClass::kW8A8) return nullptr;
  }
  GraphCache::Entry& entry = slot.graphs().Touch(slot.GraphKey(launch));
  if (entry.graph.get() != nullptr || entry.refused) return entry.graph.get();
  if (entry.uses < run_options_.uses_before_graph) {
    ++entry.uses;
    return nullptr;
  }
  CudaContext context;
  {
    const SpinThenBlockLock lock(&launch_mutex_);
    context = context_;
  }
  context.stream = slot.stream();
  context.programmatic = false;
  absl::StatusOr<GraphExec> graph =
      Capture(ordinal_, slot.stream(), [&] { return EnqueueDirect(slot, launch, context); });
  // The graph is uploaded on the slot's stream and launched on the compute stream.
  if (graph.ok() && AwaitEmpty(slot.stream(), run_options_.hang_limit).ok()) {
    entry.graph = *std::move(graph);
  } else {
    entry.refused = true;  // if the launch fails too, its error has the reason
  }
  return entry.graph.get();
}

absl::Status CudaBackend::EnqueueDirect(CudaSlot& slot, const Launch& launch,
                                        CudaContext& context) const {
  if (absl::Status s = slot.EnqueueIn(launch, context.programmatic, context.stream); !s.ok()) {
    return s;
  }
  context.programmatic = has_programmatic_ && run_options_.programmatic;
  if (absl::Status s = EnqueueArms(slot, launch, context); !s.ok()) return s;
  if (absl::Status s = slot.EnqueueOut(launch, context.programmatic, context.stream); !s.ok()) {
    return s;
  }
  context.programmatic = has_programmatic_ && run_options_.programmatic;
  return absl::OkStatus();
}

absl::Status CudaBackend::EnqueueArms(CudaSlot& slot, const Launch& launch,
                                      CudaContext& context) const {
  const size_t count = launch.targets.size();
  absl::InlinedVector<bool, kMaxCopyParts> enqueued(count, false);
  for (size_t i = 0; i < count; ++i) {
    if (enqueued[i]) continue;
    const Arm& arm = *launch.targets[i].arm;
    absl::InlinedVector<size_t, kMaxCopyParts> together = {i};
    for (size_t j = i + 1; j < count && arm.fuses; ++j) {
      if (launch.targets[j].arm != &arm) continue;
      together.push_back(j);
      enqueued[j] = true;
    }
    const int64_t pitch = PaddedK(launch.targets[i].weight->spec().k);
    int64_t first = 0;
    for (const int rows : Pieces(arm, launch.m)) {
      absl::InlinedVector<FusedWeight, kMaxCopyParts> parts;
      for (const size_t target : together) {
        const int64_t n = launch.targets[target].weight->spec().n;
        const auto row_bytes = static_cast<int64_t>(SizeOf(launch.output_type)) * n;
        parts.push_back({.weight = launch.targets[target].weight,
                         .output = slot.arm_output(target) + first * row_bytes,
                         .output_pitch = n});
      }
      const ArmArgs args = {.weight = parts.front().weight,
                            .activations = slot.device_activations() + first * pitch,
                            .activation_pitch = pitch,
                            .output = parts.front().output,
                            .output_type = launch.output_type,
                            .output_pitch = parts.front().output_pitch,
                            .m = rows,
                            .output_room = slot.OutputRoom(launch, i) - static_cast<int>(first),
                            .fused = std::span<const FusedWeight>(parts).subspan(1)};
      if (absl::Status s = EnqueueArm(arm, args, context); !s.ok()) return s;
      first += rows;
    }
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::EnqueueArm(const Arm& arm, ArmArgs args, CudaContext& context) const {
  args.context = &context;
  absl::Status status = arm.run(args);
  context.programmatic = status.ok() && has_programmatic_ && run_options_.programmatic &&
                         arm.numerics != NumericsClass::kW8A8;
  if (!status.ok()) {
    cudaMemsetAsync(workspace_.data(), kEmptySentinelByte, workspace_.size(), context.stream);
    cudaGetLastError();
  }
  return status;
}

absl::Status CudaBackend::AfterFailure(CudaSlot& slot, absl::Status status) {
  bool hung = absl::IsDeadlineExceeded(status);
  for (const cudaStream_t stream : {compute_.get(), slot.stream()}) {
    if (!hung) hung = absl::IsDeadlineExceeded(AwaitEmpty(stream, run_options_.hang_limit));
  }
  if (!hung) {
    NoteFailure();
    return status;
  }
  GiveUp(ordinal_);
  return absl::InternalError(absl::StrCat(device_.id,
                                          " stopped answering: ", std::string(status.message()),
                                          "; it is not used again by this process"));
}

absl::Status CudaBackend::RunArm(const Arm& arm, ArmArgs args) {
  if (absl::Status s = Enter(); !s.ok()) return s;
  absl::Status status;
  {
    const SpinThenBlockLock lock(&launch_mutex_);
    context_.programmatic = false;
    status = EnqueueArm(arm, args, context_);
  }
  const absl::Status done =
      CudaStatus(cudaStreamSynchronize(compute_.get()), "cudaStreamSynchronize");
  if (status.ok()) status = done;
  if (!status.ok()) NoteFailure();
  return status;
}

}  // namespace fulcrum::cuda
