// The copies of a small launch as kernels that read and write pinned host memory themselves. A copy
// engine moves more bytes a second, but its start and the events that order it cost several
// microseconds; these are ordered by their stream, stamp the launch's times on the way and tell the
// host through its own memory that the outputs are there.
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
  unsigned long long kernel_begin;  // the activations are there and earlier launches have ended
  unsigned long long kernel_end;
};

struct InCopy {
  const uint16_t* from;  // pinned, BF16 [rows][k]
  uint16_t* to;          // device, [rows][pitch]; what follows a row's k elements becomes 0
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
  int count;                 // 0 <= count <= kMaxCopyParts; with none only the flag is set
  const Stamps* from;        // device
  Stamps* to;                // pinned
  unsigned long long* done;  // pinned, DoneFlags of them, 0 before: set when the outputs are there
};

// How many flags of `done` a copy sets, each to the time it was finished at, ns.
int DoneFlags(const OutCopy& copy);

// programmatic: the operation before on the stream is a kernel, and the device is sm_90 or later.
// The copy in reads host memory while that kernel still runs, and ends no earlier than it.
cudaError_t EnqueueCopyIn(const InCopy& copy, bool programmatic, cudaStream_t stream);
cudaError_t EnqueueCopyOut(const OutCopy& copy, bool programmatic, cudaStream_t stream);

// Loads the kernels on the current device, which the first launch of each would pay for.
cudaError_t LoadCopies();

}  // namespace fulcrum::cuda
