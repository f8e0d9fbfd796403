// Times work as the nodes of a CUDA graph: what starts a launch is then left out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace fulcrum::bench {

// Says what failed on stderr.
bool Ok(cudaError_t error, const char* call);

// Enqueues launch number `launch`; false when it could not.
using Node = std::function<bool(int launch, cudaStream_t stream)>;

// Microseconds a node of a graph of `launches`, median of the replays; 0 when something failed.
double TimeGraph(int launches, int replays, const Node& node);

// Device memory, filled; null when there was none.
struct DeviceBytes {
  explicit DeviceBytes(size_t bytes, int fill = 0);
  ~DeviceBytes() { cudaFree(data); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data = nullptr;
};

}  // namespace fulcrum::bench
