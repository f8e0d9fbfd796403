// An arm: one kernel with its launch rule and numerics class; a row of a backend's ladder table.
// The table is the only place that knows the order; choosing is ladder.h's; running is backend.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/ladder/levers.h"
#include "kernels/types.h"

namespace fulcrum {

class ResidentWeight;

// One more weight of a launch, of the same format and K, for the same rows.
struct FusedWeight {
  const ResidentWeight* weight = nullptr;
  void* output = nullptr;    // [m, its N], in the launch's output_type
  int64_t output_pitch = 0;  // elements, >= its N
};

// Everything one launch needs. Pointers are in the backend's own memory (host for CPU, device for
// CUDA). Row m of the activations starts at activation_pitch * m elements; likewise the output.
struct ArmArgs {
  const ResidentWeight* weight = nullptr;  // made by the same backend's Upload
  const void* activations = nullptr;       // [m, K] BF16 (other types are converted at gather)
  int64_t activation_pitch = 0;            // elements, >= K
  void* output = nullptr;                  // [m, N] in output_type (bf16 or f32)
  DType output_type = DType::kBf16;
  int64_t output_pitch = 0;  // elements, >= N
  int m = 0;                 // rows, 1 <= m <= the arm's rows_per_launch
  int output_room = 0;       // rows there is memory for, those beyond m for anything; below m: m
  void* context = nullptr;   // backend's: a thread pool on CPU, a stream with workspace on CUDA
  std::span<const FusedWeight> fused = {};  // given only to arms that fuse
};
using ArmFn = absl::Status (*)(const ArmArgs&);

// What the running device can do; an arm's `needs` bits must all be there.
enum DeviceCap : uint32_t {
  kCapNone = 0,
  kCapMma = 1u << 0,          // bf16 tensor cores (sm_80 and up)
  kCapSm90a = 1u << 1,        // wgmma
  kCapBlockScaled = 1u << 2,  // block-scaled W8A8, and weights kept for it
  kCapImma = 1u << 3,         // integer tensor cores (sm_75 and up)
  kCapBulkCopy = 1u << 4,     // bulk and tensor copies, programmatic launches (sm_90 and up)
  kCapFasterArms = 1u << 5,   // arms with Gate::where_faster were measured to be faster here
  kCapLibrary = 1u << 6,      // the vendor's matrix library, opened because a lever asked for it
};

inline constexpr int kAnyRows = 1 << 30;

struct Arm {
  std::string_view name;  // entry point = file stem = table row = metric label = benchmark row
  WeightFormat format = WeightFormat::kFp8Block128;
  NumericsClass numerics = NumericsClass::kExact;
  bool decode = true;    // serves step decode
  bool prefill = false;  // serves step prefill
  int m_min = 1;         // rows it serves, inclusive; a batch above rows_per_launch runs in pieces
  int m_max = kMaxDecodeRows;
  int rows_per_launch = kMaxDecodeRows;
  Gate gate = {};             // the lever (and choice) that opens it; ungated arms are always open
  uint32_t needs = kCapNone;  // DeviceCap bits
  bool fuses = false;         // takes fused weights: one kernel for several weights
  ArmFn run = nullptr;

  bool Serves(WeightFormat f, Step step, int m) const {
    return f == format && (step == Step::kDecode ? decode : prefill) && m >= m_min && m <= m_max;
  }
};

}  // namespace fulcrum
