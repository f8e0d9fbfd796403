// Copies of a small launch by kernels that read and write pinned host memory. A copy engine has
// more bandwidth, but its start and the events that order it cost several microseconds. These
// kernels are ordered by their stream. They also record the launch's times and set flags in host
// memory when the outputs are complete.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace fulcrum::cuda {

// Times of one launch on the device's clock, ns.
struct Stamps {
  unsigned long long in_begin;
  unsigned long long in_end;
  unsigned long long kernel_begin;  // activations are copied and earlier launches have ended
  unsigned long long kernel_end;
};

struct InCopy {
  const uint16_t* from;  // pinned, BF16 [rows][k]
  uint16_t* to;          // device, [rows][pitch]; the elements after a row's k are set to 0
  int rows;
  int k;
  int pitch;       // elements, a multiple of 8, >= k
  Stamps* stamps;  // device; the first three are written
};

inline constexpr int kMaxCopyParts = 16;
inline constexpr int kMaxDoneFlags = 1024;

struct OutCopy {
  struct Part {
    const std::byte* from;  // device, aligned to 16 bytes
    std::byte* to;          // pinned, likewise
    int64_t bytes;          // a multiple of 2
  };
  Part parts[kMaxCopyParts];
  int count;                 // 0 <= count <= kMaxCopyParts; with 0 only the flag is set
  const Stamps* from;        // device
  Stamps* to;                // pinned
  unsigned long long* done;  // pinned, DoneFlags of them, 0 before: set at completion
};

// The number of flags of `done` that a copy sets, each to the time of its completion, ns.
int DoneFlags(const OutCopy& copy);

// programmatic: the operation before on the stream is a kernel, and the device is sm_90 or later.
// The copy in reads host memory while that kernel runs, and ends after it.
cudaError_t EnqueueCopyIn(const InCopy& copy, bool programmatic, cudaStream_t stream);
cudaError_t EnqueueCopyOut(const OutCopy& copy, bool programmatic, cudaStream_t stream);

// Loads the kernels on the current device, so that their first launches do not pay for it.
cudaError_t LoadCopies();

}  // namespace fulcrum::cuda
