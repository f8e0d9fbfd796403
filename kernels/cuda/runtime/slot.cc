// See slot.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/slot.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/wait.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/w8a8/cublaslt.h"

namespace fulcrum::cuda {
namespace {

// Growing stalls the device, and decode batches have any size from 1 to 32 rows. So small buffers
// grow to powers of two, and a slot settles after a few calls. Large buffers are not doubled.
size_t Capacity(size_t bytes) {
  constexpr size_t kLeast = 4096, kStep = size_t{1} << 20;
  if (bytes == 0) return 0;
  return bytes <= kStep ? std::bit_ceil(std::max(bytes, kLeast))
                        : (bytes + kStep - 1) / kStep * kStep;
}

size_t RowBytes(const WeightSpec& spec) { return static_cast<size_t>(spec.k) * 2; }

size_t OutputRowBytes(const Launch& launch, const LaunchTarget& target) {
  return static_cast<size_t>(target.weight->spec().n) * SizeOf(launch.output_type);
}
size_t OutputBytes(const Launch& launch, const LaunchTarget& target) {
  return static_cast<size_t>(launch.m) * OutputRowBytes(launch, target);
}

absl::Status AwaitEvent(const Event& event, absl::Duration limit) {
  return Await([&event] { return Ended(event.get()); }, [] { return absl::OkStatus(); }, limit);
}

double Seconds(Timeline::Time begin, Timeline::Time end) {
  return std::chrono::duration<double>(end - begin).count();
}
double Seconds(unsigned long long begin, unsigned long long end) {
  return end > begin ? static_cast<double>(end - begin) * 1e-9 : 0;
}

}  // namespace

// Measured on an H200 behind PCIe 5 (bench/results/h200.md, "Run"). Every arm of ours stores a few
// KiB as fast over the bus as to the device. An exact arm stores any size as fast, since it stores
// whole lines all the time it runs; but beside other launches the copy engine costs the compute
// stream less. An arm of class mma stores scattered 16 bytes, all at its end, which takes longer
// than a copy. A library's arm may read what it stored.
bool WritesToHost(const Arm& arm, size_t bytes, bool alone) {
  constexpr size_t kLittle = size_t{16} << 10;
  if (arm.numerics == NumericsClass::kW8A8) return false;
  return bytes <= kLittle || (alone && arm.numerics == NumericsClass::kExact);
}

size_t CudaSlot::CopiedBytes(const Launch& launch) const {
  size_t bytes = static_cast<size_t>(launch.m) * RowBytes(launch.targets.front().weight->spec());
  for (size_t i = 0; i < launch.targets.size(); ++i) {
    if (!outputs_[i].by_arm) bytes += OutputBytes(launch, launch.targets[i]);
  }
  return bytes;
}

int CudaSlot::OutputRoom(const Launch& launch, size_t target) const {
  const Output& output = outputs_[target];
  if (output.by_arm) return launch.m;
  const size_t rows = output.device.size() / OutputRowBytes(launch, launch.targets[target]);
  return static_cast<int>(std::min(rows, static_cast<size_t>(LibraryRows(launch.m))));
}

GraphCache::Key CudaSlot::GraphKey(const Launch& launch) const {
  uint64_t by_arm = 0;
  for (size_t i = 0; i < launch.targets.size(); ++i) {
    by_arm |= uint64_t{outputs_[i].by_arm} << i;
  }
  return GraphCache::KeyOf(launch, by_arm);
}

// Makes stream and events and loads the copies' kernels, so that the first launch does not pay for
// it.
absl::Status CudaSlot::Open() {
  if (stream_.get() != nullptr) return absl::OkStatus();
  for (Event* event : {&in_done_, &kernel_done_, &out_done_}) {
    absl::StatusOr<Event> made = MakeEvent(device_, EventKind::kOrder);
    if (!made.ok()) return made.status();
    *event = *std::move(made);
  }
  if (absl::Status s = Grow(report_, device_, sizeof(Report)); !s.ok()) return s;
  if (absl::Status s = Grow(stamps_, device_, sizeof(Stamps)); !s.ok()) return s;
  absl::StatusOr<Stream> stream = MakeStream(device_, Priority::kLaunches);
  if (!stream.ok()) return stream.status();
  if (absl::Status s = CudaStatus(cudaMemsetAsync(stamps_.data(), 0, sizeof(Stamps), stream->get()),
                                  "cudaMemsetAsync");
      !s.ok()) {
    return s;
  }
  if (absl::Status s = CudaStatus(LoadCopies(), "loading of the copies"); !s.ok()) return s;
  if (absl::Status s = AwaitEmpty(stream->get(), kHangLimit); !s.ok()) return s;
  stream_ = *std::move(stream);
  return absl::OkStatus();
}

absl::Status CudaSlot::Reserve(size_t activation_bytes, std::span<const size_t> output_bytes) {
  if (absl::Status s = Open(); !s.ok()) return s;
  const auto grow = [this](auto& buffer, size_t bytes) {
    if (buffer.size() >= bytes) return absl::OkStatus();
    graphs_.Clear();  // graphs hold the old address
    return Grow(buffer, device_, Capacity(bytes));
  };
  absl::Status status = grow(host_activations_, activation_bytes);
  // Without padding: K is not known here, and most K need none.
  if (status.ok()) status = grow(device_activations_, activation_bytes);
  if (outputs_.size() < output_bytes.size()) outputs_.resize(output_bytes.size());
  for (size_t i = 0; i < output_bytes.size() && status.ok(); ++i) {
    status = grow(outputs_[i].host, output_bytes[i]);
    if (status.ok()) status = grow(outputs_[i].device, output_bytes[i]);
  }
  return status;
}

absl::Status CudaSlot::Check(const Launch& launch) const {
  const auto too_small = [&launch](std::string_view what, size_t needs, size_t has) {
    return absl::InternalError(absl::StrCat("a launch of ", launch.m, " rows needs ", needs,
                                            " bytes for ", std::string(what), ", its slot has ",
                                            has));
  };
  if (stream_.get() == nullptr) return absl::InternalError("a launch in a slot never reserved");
  if (launch.targets.empty() || launch.m < 1) {
    return absl::InternalError("a launch without targets or rows");
  }
  const int64_t k = launch.targets.front().weight->spec().k;
  const size_t activation_bytes = static_cast<size_t>(launch.m) * static_cast<size_t>(k) * 2;
  if (host_activations_.size() < activation_bytes) {
    return too_small("activations", activation_bytes, host_activations_.size());
  }
  for (size_t i = 0; i < launch.targets.size(); ++i) {
    if (launch.targets[i].weight->spec().k != k) {
      return absl::InternalError("the targets of a launch differ in K");
    }
    const size_t needs = OutputBytes(launch, launch.targets[i]);
    const size_t has =
        i < outputs_.size() ? std::min(outputs_[i].host.size(), outputs_[i].device.size()) : 0;
    if (has < needs) return too_small(absl::StrCat("output ", i), needs, has);
  }
  return absl::OkStatus();
}

absl::Status CudaSlot::Prepare(const Launch& launch, bool host_outputs, bool alone) {
  for (size_t i = 0; i < launch.targets.size(); ++i) {
    const LaunchTarget& target = launch.targets[i];
    outputs_[i].by_arm =
        host_outputs && WritesToHost(*target.arm, OutputBytes(launch, target), alone);
    if ((target.arm->needs & kCapLibrary) == 0 || outputs_[i].by_arm) continue;
    const size_t needs =
        static_cast<size_t>(LibraryRows(launch.m)) * OutputRowBytes(launch, target);
    if (outputs_[i].device.size() >= needs) continue;
    graphs_.Clear();
    // Without this room the launch runs on our own kernel.
    Grow(outputs_[i].device, device_, Capacity(needs)).IgnoreError();
  }
  const size_t bytes = static_cast<size_t>(launch.m) *
                       static_cast<size_t>(PaddedK(launch.targets.front().weight->spec().k)) * 2;
  if (device_activations_.size() >= bytes) return absl::OkStatus();
  graphs_.Clear();
  return Grow(device_activations_, device_, Capacity(bytes));
}

OutCopy CudaSlot::CopyOutOf(const Launch& launch) const {
  auto* const to = reinterpret_cast<Report*>(report_.data());
  OutCopy copy = {};
  copy.from = reinterpret_cast<const Stamps*>(stamps_.data());
  copy.to = &to->stamps;
  copy.done = to->done;
  for (size_t i = 0; i < launch.targets.size(); ++i) {
    if (outputs_[i].by_arm) continue;
    copy.parts[copy.count++] = {
        .from = outputs_[i].device.data(),
        .to = outputs_[i].host.data(),
        .bytes = static_cast<int64_t>(OutputBytes(launch, launch.targets[i]))};
  }
  return copy;
}

void CudaSlot::ExpectOutputs(const Launch& launch) {
  expected_flags_ = DoneFlags(CopyOutOf(launch));
  std::fill_n(report().done, expected_flags_, 0);
}

absl::Status CudaSlot::EnqueueIn(const Launch& launch, bool programmatic, cudaStream_t stream) {
  const int64_t k = launch.targets.front().weight->spec().k;
  const InCopy copy = {.from = activations(),
                       .to = reinterpret_cast<uint16_t*>(device_activations_.data()),
                       .rows = launch.m,
                       .k = static_cast<int>(k),
                       .pitch = static_cast<int>(PaddedK(k)),
                       .stamps = reinterpret_cast<Stamps*>(stamps_.data())};
  return CudaStatus(EnqueueCopyIn(copy, programmatic, stream), "copy of activations");
}

absl::Status CudaSlot::EnqueueOut(const Launch& launch, bool programmatic, cudaStream_t stream) {
  return CudaStatus(EnqueueCopyOut(CopyOutOf(launch), programmatic, stream), "copy of outputs");
}

absl::StatusOr<LaunchTimes> CudaSlot::AwaitOutputs(cudaStream_t compute, absl::Duration limit) {
  int arrived = 0;
  const auto done = [&]() -> absl::StatusOr<bool> {
    while (arrived < expected_flags_ &&
           std::atomic_ref(report().done[arrived]).load(std::memory_order_acquire) != 0) {
      ++arrived;
    }
    return arrived == expected_flags_;
  };
  const auto look = [&]() -> absl::Status {
    const absl::StatusOr<bool> empty = Ended(compute);
    if (!empty.ok()) return empty.status();
    if (*empty && !*done()) return absl::InternalError("a launch ended without its outputs");
    return absl::OkStatus();
  };
  if (absl::Status s = Await(done, look, limit); !s.ok()) return s;
  const Stamps& at = report().stamps;
  const unsigned long long end = *std::max_element(report().done, report().done + expected_flags_);
  return LaunchTimes{.copy_in = Seconds(at.in_begin, at.in_end),
                     .kernel = Seconds(at.kernel_begin, at.kernel_end),
                     .copy_out = Seconds(at.kernel_end, end)};
}

absl::Status CudaSlot::CopyIn(const Launch& launch) {
  const WeightSpec& spec = launch.targets.front().weight->spec();
  const auto rows = static_cast<size_t>(launch.m);
  const size_t row_bytes = RowBytes(spec);
  const size_t pitch = static_cast<size_t>(PaddedK(spec.k)) * 2;
  std::byte* const to = device_activations_.data();
  begin_ = std::chrono::steady_clock::now();
  in_time_.reset();
  cudaError_t error = cudaSuccess;
  if (pitch == row_bytes) {
    error = cudaMemcpyAsync(to, host_activations_.data(), rows * row_bytes, cudaMemcpyHostToDevice,
                            stream_.get());
  } else {
    // Cleared each time: the padding of one K may hold rows of another K.
    error = cudaMemset2DAsync(to + row_bytes, pitch, 0, pitch - row_bytes, rows, stream_.get());
    if (error == cudaSuccess) {
      error = cudaMemcpy2DAsync(to, pitch, host_activations_.data(), row_bytes, row_bytes, rows,
                                cudaMemcpyHostToDevice, stream_.get());
    }
  }
  if (absl::Status s = CudaStatus(error, "copy of activations"); !s.ok()) return s;
  return CudaStatus(cudaEventRecord(in_done_.get(), stream_.get()), "cudaEventRecord");
}

absl::Status CudaSlot::AwaitIn(absl::Duration limit) {
  if (in_time_.has_value()) return absl::OkStatus();
  if (absl::Status s = AwaitEvent(in_done_, limit); !s.ok()) return s;
  in_time_ = std::chrono::steady_clock::now();
  return absl::OkStatus();
}

absl::StatusOr<bool> CudaSlot::BeginKernels(cudaStream_t compute) {
  if (!in_time_.has_value()) {
    absl::StatusOr<bool> there = Ended(in_done_.get());
    if (!there.ok()) return there;
    if (*there) in_time_ = std::chrono::steady_clock::now();
  }
  if (in_time_.has_value()) return true;
  if (absl::Status s =
          CudaStatus(cudaStreamWaitEvent(compute, in_done_.get(), 0), "cudaStreamWaitEvent");
      !s.ok()) {
    return s;
  }
  return false;
}

absl::Status CudaSlot::EndKernels(cudaStream_t compute) {
  enqueued_ = std::chrono::steady_clock::now();
  return CudaStatus(cudaEventRecord(kernel_done_.get(), compute), "cudaEventRecord");
}

absl::Status CudaSlot::CopyOut(const Launch& launch) {
  const std::span<const Output> outputs = std::span(outputs_).first(launch.targets.size());
  copies_out_ = !std::ranges::all_of(outputs, &Output::by_arm);
  if (!copies_out_) return absl::OkStatus();
  if (absl::Status s = CudaStatus(cudaStreamWaitEvent(stream_.get(), kernel_done_.get(), 0),
                                  "cudaStreamWaitEvent");
      !s.ok()) {
    return s;
  }
  for (size_t i = 0; i < launch.targets.size(); ++i) {
    if (outputs_[i].by_arm) continue;
    if (absl::Status s =
            CudaStatus(cudaMemcpyAsync(outputs_[i].host.data(), outputs_[i].device.data(),
                                       OutputBytes(launch, launch.targets[i]),
                                       cudaMemcpyDeviceToHost, stream_.get()),
                       "copy of outputs");
        !s.ok()) {
      return s;
    }
  }
  return CudaStatus(cudaEventRecord(out_done_.get(), stream_.get()), "cudaEventRecord");
}

absl::StatusOr<LaunchTimes> CudaSlot::Finish(Timeline& timeline, uint64_t number,
                                             absl::Duration limit) {
  if (absl::Status s = AwaitIn(limit); !s.ok()) return s;
  if (absl::Status s = AwaitEvent(kernel_done_, limit); !s.ok()) return s;
  const Timeline::Time kernel = std::chrono::steady_clock::now();
  timeline.Ended(number, kernel);
  Timeline::Time out = kernel;
  if (copies_out_) {
    if (absl::Status s = AwaitEvent(out_done_, limit); !s.ok()) return s;
    out = std::chrono::steady_clock::now();
  }
  const Timeline::Time began = timeline.Began(number, std::max(*in_time_, enqueued_), kernel);
  return LaunchTimes{.copy_in = Seconds(begin_, *in_time_),
                     .kernel = std::max(0.0, Seconds(began, kernel)),
                     .copy_out = Seconds(kernel, out)};
}

}  // namespace fulcrum::cuda
