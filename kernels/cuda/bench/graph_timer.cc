// See graph_timer.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bench/graph_timer.h"

#include <cstdio>
#include <vector>

#include "kernels/bench/report.h"

namespace fulcrum::bench {

bool Ok(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  return false;
}

double TimeGraph(int launches, int replays, const Node& node) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  bool ok = Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate") &&
            Ok(cudaEventCreate(&begin), "cudaEventCreate") &&
            Ok(cudaEventCreate(&end), "cudaEventCreate") &&
            Ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; ok && i < launches; ++i) ok = node(i, stream);
  ok = ok && Ok(cudaStreamEndCapture(stream, &graph), "capture") &&
       Ok(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  std::vector<double> us;
  for (int i = -3; ok && i < replays; ++i) {
    float ms = 0;
    ok = Ok(cudaEventRecord(begin, stream), "record") &&
         Ok(cudaGraphLaunch(exec, stream), "replay") &&
         Ok(cudaEventRecord(end, stream), "record") && Ok(cudaEventSynchronize(end), "replay") &&
         Ok(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 0) us.push_back(ms * 1e3 / launches);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return ok ? Quantile(us, 0.5) : 0;
}

DeviceBytes::DeviceBytes(size_t bytes, int fill) {
  if (Ok(cudaMalloc(&data, bytes), "cudaMalloc")) Ok(cudaMemset(data, fill, bytes), "cudaMemset");
}

}  // namespace fulcrum::bench
