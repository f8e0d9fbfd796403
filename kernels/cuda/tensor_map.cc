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

cudaError_t Describe(CUtensorMapDataType type, const void* data, int64_t rows, int64_t row_elements,
                     int64_t row_bytes, int box_elements, int box_rows, CUtensorMap* map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(row_elements), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_elements),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encode(map, type, 2, const_cast<void*>(data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t DescribeRows(const uint16_t* rows, int m, int64_t k, int64_t pitch, int box_rows,
                         CUtensorMap* map) {
  return Describe(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rows, m, k, pitch * 2, kBoxK, box_rows, map);
}

cudaError_t DescribeCodes(const std::byte* codes, int64_t rows, int64_t k, int box_rows,
                          CUtensorMap* map) {
  return Describe(CU_TENSOR_MAP_DATA_TYPE_UINT8, codes, rows, k, k, kBoxBytes, box_rows, map);
}

}  // namespace fulcrum::cuda
