// The one use of the driver's own interface.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

namespace fulcrum::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;  // CUDA 12.0
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

cudaError_t DescribeRows(const uint16_t* rows, int m, int64_t k, int64_t pitch, int box_rows,
                         CUtensorMap* map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(m)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(pitch) * 2};
  const cuuint32_t box[] = {kBoxK, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint16_t*>(rows), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace fulcrum::cuda
