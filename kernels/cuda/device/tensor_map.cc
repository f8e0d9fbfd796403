// Encodes tensor maps. The only file that calls the driver interface.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>

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

// sizes and box from the innermost dimension out; strides, bytes, from the second on.
template <size_t kRank>
cudaError_t Describe(CUtensorMapDataType type, const void* data, const cuuint64_t (&sizes)[kRank],
                     const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank],
                     CUtensorMap* map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint32_t steps[kRank];
  std::fill(std::begin(steps), std::end(steps), 1);
  const CUresult result =
      encode(map, type, kRank, const_cast<void*>(data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

constexpr cuuint64_t Size(int64_t size) { return static_cast<cuuint64_t>(size); }
constexpr cuuint32_t Box(int size) { return static_cast<cuuint32_t>(size); }

}  // namespace

cudaError_t DescribeRows(const uint16_t* rows, int m, int64_t k, int64_t pitch, int box_rows,
                         CUtensorMap* map) {
  return Describe<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rows, {Size(k), Size(m)}, {Size(pitch * 2)},
                     {kBoxK, Box(box_rows)}, map);
}

cudaError_t DescribeSlices(const uint16_t* rows, int m, int64_t k, int64_t pitch, int box_rows,
                           int box_slices, CUtensorMap* map) {
  return Describe<3>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rows, {kBoxK, Size(m), Size(k / kBoxK)},
                     {Size(pitch * 2), kBoxBytes}, {kBoxK, Box(box_rows), Box(box_slices)}, map);
}

cudaError_t DescribeCodes(const std::byte* codes, int64_t rows, int64_t k, int box_rows,
                          CUtensorMap* map) {
  return Describe<2>(CU_TENSOR_MAP_DATA_TYPE_UINT8, codes, {Size(k), Size(rows)}, {Size(k)},
                     {kBoxBytes, Box(box_rows)}, map);
}

}  // namespace fulcrum::cuda
