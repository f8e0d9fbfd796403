// See slot.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/slot.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"

namespace fulcrum::cuda {
namespace {

// Growing stalls the device, and decode batches come in all sizes from 1 to 32 rows: small buffers
// grow to powers of two, so a slot settles after a few calls; large ones are not doubled.
size_t Capacity(size_t bytes) {
  constexpr size_t kLeast = 4096, kStep = size_t{1} << 20;
  if (bytes == 0) return 0;
  return bytes <= kStep ? std::bit_ceil(std::max(bytes, kLeast))
                        : (bytes + kStep - 1) / kStep * kStep;
}

template <MemoryKind kKind>
absl::Status GrowAhead(Buffer<kKind>& buffer, int device, size_t bytes) {
  return buffer.size() >= bytes ? absl::OkStatus() : Grow(buffer, device, Capacity(bytes));
}

size_t RowBytes(const WeightSpec& spec) { return static_cast<size_t>(spec.k) * 2; }

size_t OutputBytes(const Launch& launch, const LaunchTarget& target) {
  return static_cast<size_t>(launch.m) * static_cast<size_t>(target.weight->spec().n) *
         SizeOf(launch.output_type);
}

}  // namespace

absl::Status CudaSlot::MakeStreamAndEvents() {
  if (stream_.get() != nullptr) return absl::OkStatus();
  for (Event& event : events_) {
    absl::StatusOr<Event> made = MakeEvent(device_, EventKind::kTimed);
    if (!made.ok()) return made.status();
    event = *std::move(made);
  }
  absl::StatusOr<Stream> stream = MakeStream(device_, Priority::kLaunches);
  if (!stream.ok()) return stream.status();
  stream_ = *std::move(stream);
  return absl::OkStatus();
}

absl::Status CudaSlot::Reserve(size_t activation_bytes, std::span<const size_t> output_bytes) {
  if (absl::Status s = MakeStreamAndEvents(); !s.ok()) return s;
  absl::Status status = GrowAhead(host_activations_, device_, activation_bytes);
  // Without padding: K is not known here, and mostly it has none.
  if (status.ok()) status = GrowAhead(device_activations_, device_, activation_bytes);
  if (outputs_.size() < output_bytes.size()) outputs_.resize(output_bytes.size());
  for (size_t i = 0; i < output_bytes.size() && status.ok(); ++i) {
    status = GrowAhead(outputs_[i].host, device_, output_bytes[i]);
    if (status.ok()) status = GrowAhead(outputs_[i].device, device_, output_bytes[i]);
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

absl::Status CudaSlot::Record(Moment moment, cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(events_[moment].get(), stream), "cudaEventRecord");
}

absl::Status CudaSlot::CopyIn(const Launch& launch) {
  const WeightSpec& spec = launch.targets.front().weight->spec();
  const auto rows = static_cast<size_t>(launch.m);
  const size_t row_bytes = RowBytes(spec);
  const size_t pitch = static_cast<size_t>(PaddedK(spec.k)) * 2;
  if (absl::Status s = GrowAhead(device_activations_, device_, rows * pitch); !s.ok()) return s;
  std::byte* const to = device_activations_.data();
  if (absl::Status s = Record(kInBegin, stream_.get()); !s.ok()) return s;
  cudaError_t error = cudaSuccess;
  if (pitch == row_bytes) {
    error = cudaMemcpyAsync(to, host_activations_.data(), rows * row_bytes, cudaMemcpyHostToDevice,
                            stream_.get());
  } else {
    // Cleared each time: the padding of one K is where rows of another K were.
    error = cudaMemset2DAsync(to + row_bytes, pitch, 0, pitch - row_bytes, rows, stream_.get());
    if (error == cudaSuccess) {
      error = cudaMemcpy2DAsync(to, pitch, host_activations_.data(), row_bytes, row_bytes, rows,
                                cudaMemcpyHostToDevice, stream_.get());
    }
  }
  if (absl::Status s = CudaStatus(error, "copy of activations"); !s.ok()) return s;
  return Record(kInEnd, stream_.get());
}

absl::Status CudaSlot::BeginKernels(cudaStream_t compute) {
  if (absl::Status s =
          CudaStatus(cudaStreamWaitEvent(compute, events_[kInEnd].get(), 0), "cudaStreamWaitEvent");
      !s.ok()) {
    return s;
  }
  return Record(kKernelBegin, compute);
}

absl::Status CudaSlot::EndKernels(cudaStream_t compute) { return Record(kKernelEnd, compute); }

absl::Status CudaSlot::CopyOut(const Launch& launch) {
  if (absl::Status s = CudaStatus(cudaStreamWaitEvent(stream_.get(), events_[kKernelEnd].get(), 0),
                                  "cudaStreamWaitEvent");
      !s.ok()) {
    return s;
  }
  if (absl::Status s = Record(kOutBegin, stream_.get()); !s.ok()) return s;
  for (size_t i = 0; i < launch.targets.size(); ++i) {
    if (absl::Status s =
            CudaStatus(cudaMemcpyAsync(outputs_[i].host.data(), outputs_[i].device.data(),
                                       OutputBytes(launch, launch.targets[i]),
                                       cudaMemcpyDeviceToHost, stream_.get()),
                       "copy of outputs");
        !s.ok()) {
      return s;
    }
  }
  return Record(kOutEnd, stream_.get());
}

absl::StatusOr<double> CudaSlot::Seconds(Moment begin, Moment end) const {
  float milliseconds = 0;
  if (absl::Status s =
          CudaStatus(cudaEventElapsedTime(&milliseconds, events_[begin].get(), events_[end].get()),
                     "cudaEventElapsedTime");
      !s.ok()) {
    return s;
  }
  return static_cast<double>(milliseconds) / 1000;
}

absl::StatusOr<LaunchTimes> CudaSlot::Finish() {
  if (absl::Status s =
          CudaStatus(cudaEventSynchronize(events_[kOutEnd].get()), "cudaEventSynchronize");
      !s.ok()) {
    return s;
  }
  const absl::StatusOr<double> in = Seconds(kInBegin, kInEnd);
  const absl::StatusOr<double> kernel = Seconds(kKernelBegin, kKernelEnd);
  const absl::StatusOr<double> out = Seconds(kOutBegin, kOutEnd);
  for (const absl::StatusOr<double>* time : {&in, &kernel, &out}) {
    if (!time->ok()) return time->status();
  }
  return LaunchTimes{.copy_in = *in, .kernel = *kernel, .copy_out = *out};
}

void CudaSlot::Drain() {
  if (stream_.get() != nullptr) cudaStreamSynchronize(stream_.get());
  cudaGetLastError();
}

}  // namespace fulcrum::cuda
