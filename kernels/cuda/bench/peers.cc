// See peers.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bench/peers.h"

#include <utility>

#include "kernels/cuda/bench/dequantise.h"
#include "kernels/cuda/w8a8/quantise.h"

namespace fulcrum::bench {
namespace {

// A few are enough: they are twice as large, and the cache holds a fraction of one.
constexpr size_t kDequantised = 3;
constexpr int kMostRows = 4096;

}  // namespace

std::unique_ptr<Peers> Peers::Make(std::span<const cuda::CudaWeight* const> weights,
                                   std::string* reason) {
  std::unique_ptr<Peers> peers(new Peers());
  absl::StatusOr<std::unique_ptr<cuda::CublasLt>> library = cuda::CublasLt::Open(0);
  if (!library.ok()) {
    *reason = std::string(library.status().message());
    return nullptr;
  }
  peers->library_ = *std::move(library);
  peers->weights_.assign(weights.begin(), weights.end());
  const cuda::TileLayout& layout = weights[0]->layout();
  const auto reserve = [](size_t bytes) {
    auto memory = std::make_unique<Memory>();
    if (cudaMalloc(&memory->data, bytes) != cudaSuccess) memory.reset();
    return memory;
  };
  peers->codes_ = reserve(static_cast<size_t>(kMostRows * layout.row_bytes));
  peers->scales_ = reserve(static_cast<size_t>(kMostRows * layout.blocks * 4));
  bool ok = peers->codes_ != nullptr && peers->scales_ != nullptr && layout.row_bytes == layout.k;
  for (size_t i = 0; ok && i < std::min(weights.size(), kDequantised); ++i) {
    peers->dequantised_.push_back(reserve(static_cast<size_t>(layout.n * layout.k * 2)));
    ok = peers->dequantised_.back() != nullptr &&
         Dequantise(weights[i]->rows(), weights[i]->scales(), layout.n, layout.k,
                    static_cast<uint16_t*>(peers->dequantised_.back()->data),
                    nullptr) == cudaSuccess &&
         cudaDeviceSynchronize() == cudaSuccess;
  }
  if (ok) return peers;
  *reason = "no memory for the peers' weights, or K is not a multiple of 128";
  return nullptr;
}

std::vector<PeerRow> Peers::Rows(const uint16_t* x, int m, void* y) {
  const cuda::TileLayout& layout = weights_[0]->layout();
  if (cuda::LibraryRows(m) > kMostRows) return {};
  const auto plain = [this, x, m, y, &layout](int launch, cudaStream_t stream) {
    const Memory& copy = *dequantised_[static_cast<size_t>(launch) % dequantised_.size()];
    return library_->Multiply({.m = m,
                               .n = layout.n,
                               .k = layout.k,
                               .weights = copy.data,
                               .activations = x,
                               .output = y,
                               .output_pitch = layout.n},
                              stream);
  };
  const auto scales = static_cast<float*>(scales_->data);
  const auto quantise = [this, x, m, scales, &layout](int, cudaStream_t stream) {
    const int rows = cuda::LibraryRows(m);
    return cuda::QuantiseRows(x, layout.k, rows, static_cast<int>(layout.blocks),
                              {static_cast<std::byte*>(codes_->data), scales, rows},
                              stream) == cudaSuccess;
  };
  const auto scaled = [this, m, y, scales, &layout](int launch, cudaStream_t stream) {
    const auto& weight = *weights_[static_cast<size_t>(launch) % weights_.size()];
    return library_->Multiply({.m = cuda::LibraryRows(m),
                               .n = layout.n,
                               .k = layout.k,
                               .weights = weight.rows(),
                               .activations = codes_->data,
                               .output = y,
                               .output_pitch = layout.n,
                               .weight_scales = weight.scales(),
                               .activation_scales = scales},
                              stream);
  };
  const auto both = [quantise, scaled](int launch, cudaStream_t stream) {
    return quantise(launch, stream) && scaled(launch, stream);
  };
  return {{"peer cublaslt bf16", plain},
          {"our quantise alone", quantise},
          {"peer cublaslt w8a8", scaled},
          {"  with our quantise", both}};
}

}  // namespace fulcrum::bench
