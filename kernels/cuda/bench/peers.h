// Rows of other implementations beside ours, in the same run on the same weights: what the
// vendor's library makes of the product.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/w8a8/cublaslt.h"

namespace fulcrum::bench {

// One row: its name, what one node does, and whether its operands are quantised activations.
struct PeerRow {
  std::string name;
  std::function<bool(int launch, cudaStream_t stream)> node;
};

// Of fp8 weights that were uploaded with rows().
class Peers {
 public:
  // Null with a reason when there is no library. weights: one shape, at least one.
  static std::unique_ptr<Peers> Make(std::span<const cuda::CudaWeight* const> weights,
                                     std::string* reason);

  // The rows for m activations x (device, BF16 [at least m + 3][K], K a multiple of 128); results
  // go to y (device, BF16 [at least m + 3][N]).
  std::vector<PeerRow> Rows(const uint16_t* x, int m, void* y);

 private:
  struct Memory {
    ~Memory() { cudaFree(data); }
    void* data = nullptr;
  };
  Peers() = default;

  std::unique_ptr<cuda::CublasLt> library_;
  std::vector<const cuda::CudaWeight*> weights_;
  std::vector<std::unique_ptr<Memory>> dequantised_;
  std::unique_ptr<Memory> codes_, scales_;
};

}  // namespace fulcrum::bench
