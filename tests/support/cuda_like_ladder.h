// A ladder shaped like a GPU's, without a GPU: the rules of choosing are tested on it before any of
// its arms exists, and the fake backend serves it. Nothing here runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/ladder/arm.h"

namespace fulcrum::test {

inline constexpr Gate M16Tc(int choice) { return {Lever::kM16Tc, 1u << choice}; }
inline constexpr Gate M16TcAny() {
  return {Lever::kM16Tc, 1u << kM16TcOnePass | 1u << kM16TcM16 | 1u << kM16TcM16N64};
}

inline constexpr WeightFormat kFp8 = WeightFormat::kFp8Block128;
inline constexpr uint32_t kAllCaps = kCapMma | kCapSm90a | kCapBlockScaled | kCapImma | kCapLibrary;

// clang-format off
inline constexpr Arm kCudaLikeLadder[] = {
    {.name = "w8a8_cublaslt", .format = kFp8, .numerics = NumericsClass::kW8A8, .decode = false,
     .prefill = true, .m_max = kAnyRows, .rows_per_launch = kAnyRows,
     .gate = {Lever::kW8A8Prefill, 1u << kW8A8PrefillLibrary},
     .needs = kCapBlockScaled | kCapLibrary},
    {.name = "w8a8_blockscaled", .format = kFp8, .numerics = NumericsClass::kW8A8, .decode = false,
     .prefill = true, .m_max = kAnyRows, .rows_per_launch = kAnyRows,
     .gate = {Lever::kW8A8Prefill, 1u << kW8A8PrefillOn | 1u << kW8A8PrefillLibrary},
     .needs = kCapBlockScaled},
    {.name = "w8a16_gemm_m32", .format = kFp8, .numerics = NumericsClass::kMma,
     .gate = M16Tc(kM16TcOnePass), .needs = kCapMma | kCapSm90a},
    {.name = "w8a16_gemm_m16", .format = kFp8, .numerics = NumericsClass::kMma,
     .rows_per_launch = 16, .gate = M16Tc(kM16TcM16), .needs = kCapMma},
    {.name = "w8a16_gemm_m16_n64", .format = kFp8, .numerics = NumericsClass::kMma,
     .rows_per_launch = 16, .gate = M16Tc(kM16TcM16N64), .needs = kCapMma},
    {.name = "w8a16_gemm_tiled", .format = kFp8, .numerics = NumericsClass::kMma, .decode = false,
     .prefill = true, .m_max = kAnyRows, .rows_per_launch = kAnyRows, .gate = M16TcAny(),
     .needs = kCapMma},
    {.name = "dense_gemm_m16_bf16", .format = WeightFormat::kBf16, .numerics = NumericsClass::kMma,
     .rows_per_launch = 16, .gate = M16TcAny(), .needs = kCapMma},
    {.name = "dense_gemm_tiled_bf16", .format = WeightFormat::kBf16,
     .numerics = NumericsClass::kMma, .decode = false, .prefill = true, .m_max = kAnyRows,
     .rows_per_launch = kAnyRows, .gate = M16TcAny(), .needs = kCapMma},
    {.name = "w8a16_gemv", .format = kFp8, .m_max = 1, .rows_per_launch = 1, .gate = {}},
    {.name = "w8a16_gemv_batch4", .format = kFp8, .m_min = 2, .m_max = 4, .rows_per_launch = 4,
     .gate = {}},
    {.name = "w8a16_gemv_batch16", .format = kFp8, .m_min = 5, .rows_per_launch = 16,
     .gate = {}},
    {.name = "w8a16_gemv_pieces", .format = kFp8, .decode = false, .prefill = true,
     .m_max = kAnyRows, .gate = {}},
    {.name = "dense_gemv_bf16", .format = WeightFormat::kBf16, .prefill = true, .m_max = kAnyRows,
     .gate = {}},
    {.name = "q2_0_warp_rows", .format = WeightFormat::kQ2_0, .m_max = 4, .rows_per_launch = 4,
     .gate = {Lever::kQ2WarpRows, 1u << kQ2WarpRowsAuto | 1u << kQ2WarpRowsOn}},
    {.name = "q2_0_imma", .format = WeightFormat::kQ2_0, .prefill = true, .m_min = 5,
     .m_max = kAnyRows, .gate = {Lever::kQ2Imma, 1u << kQ2ImmaOn}, .needs = kCapImma},
    {.name = "q2_0_mmvq", .format = WeightFormat::kQ2_0, .prefill = true, .m_max = kAnyRows,
     .rows_per_launch = 8, .gate = {}},
};
// clang-format on

}  // namespace fulcrum::test
