// Levers: named live switches, as rows of one table, and the immutable set of their values. A lever
// is a family map (per projection family: one of the lever's choices), a choice, or a number.
// Parsing and printing are here; who may change a live set, and when, is scheduler/lever_store.h's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/types.h"

namespace fulcrum {

enum class Lever : uint8_t {
  kM16Tc,           // m16_tc: tensor-core (GPU) or blockfold (CPU) arms, by family
  kW8A8Prefill,     // w8a8_prefill: block-scaled W8A8 for prefill under FASTEST, by family
  kQ2WarpRows,      // q2_warp_rows: auto | off | on
  kQ2Imma,          // q2_imma: off | on
  kCoalesceWindow,  // coalesce_window_us: how long a batch may wait for company, microseconds
  kMaxBatchRows,    // max_batch_rows: rows at which a decode batch closes, 1..32
  kAuditRate,       // audit_rate: share of batches with outputs recomputed on the CPU, 0..1
  kShadowRate,      // shadow_rate: share of batches of a non-exact arm checked against exact, 0..1
  kAlwaysOpen,      // not a lever: the gate of an ungated arm
};
inline constexpr size_t kLeverCount = static_cast<size_t>(Lever::kAlwaysOpen);

enum class LeverKind : uint8_t { kFamilyMap, kChoice, kNumber };

// One row of the lever table.
struct LeverInfo {
  Lever lever;
  std::string_view name;
  LeverKind kind;
  std::span<const std::string_view> choices = {};  // family map and choice: [0] is the closed one
  std::string_view default_choice_when_bare = {};  // family map: what a bare family name means
  double default_number = 0;                       // choice: index of the default; number: default
  double min = 0, max = 0;                         // number: bounds, inclusive
  bool whole = false;                              // number: only whole values
  std::string_view gates;                          // the arms it gates, for listings
  std::string_view doc;                            // one sentence
  bool changes_bits = false;  // opening it can change the bits of BATCH_INVARIANT or FASTEST calls
};
std::span<const LeverInfo> LeverTable();

// Indices into the choices of the levers that gate arms, for Gate::choices (1u << index).
inline constexpr int kM16TcOnePass = 1, kM16TcM16 = 2, kM16TcM16N64 = 3;  // m16_tc, 0 = off
inline constexpr uint32_t kM16TcOpen =  // a mask of its choices: all but off
    1u << kM16TcOnePass | 1u << kM16TcM16 | 1u << kM16TcM16N64;
inline constexpr int kW8A8PrefillOn = 1, kW8A8PrefillLibrary = 2;  // w8a8_prefill, 0 = off
inline constexpr int kQ2WarpRowsAuto = 1, kQ2WarpRowsOn = 2;       // q2_warp_rows, 0 = off
inline constexpr int kQ2ImmaOn = 1;                                // q2_imma, 0 = off

const LeverInfo& Info(Lever lever);
const LeverInfo* FindLever(std::string_view name);  // null when unknown

// The values of all levers. A plain value: copy it, change it, publish it whole.
class LeverSet {
 public:
  LeverSet();  // built-in defaults: everything that changes bits is closed

  // Family map: index into choices, 0 = closed.
  int choice(Lever lever, Family family) const {
    return maps_[static_cast<size_t>(lever)][static_cast<size_t>(family)];
  }
  int choice(Lever lever) const { return static_cast<int>(numbers_[static_cast<size_t>(lever)]); }
  double number(Lever lever) const { return numbers_[static_cast<size_t>(lever)]; }
  void set_choice(Lever lever, Family family, int choice) {
    maps_[static_cast<size_t>(lever)][static_cast<size_t>(family)] = static_cast<uint8_t>(choice);
  }
  void set_number(Lever lever, double value) { numbers_[static_cast<size_t>(lever)] = value; }

  // Replaces one lever's whole value from text: "attn_qkv:one_pass,ffn_down:m16" or "all:one_pass"
  // or "off" for a family map, a choice name, or a number. On error nothing is changed;
  // INVALID_ARGUMENT names lever, token and what is allowed.
  absl::Status Set(std::string_view lever, std::string_view value);
  // The canonical text of one lever; Set(name, Print(lever)) is the identity.
  std::string Print(Lever lever) const;

  friend bool operator==(const LeverSet&, const LeverSet&) = default;

 private:
  static constexpr size_t kFamilies = kAllFamilies.size();
  std::array<std::array<uint8_t, kFamilies>, kLeverCount> maps_{};
  std::array<double, kLeverCount> numbers_{};
};

// The gate of an arm: open when the lever's value (for the family, if it is a family map) is one of
// the choices in the mask. Bit i stands for choice i.
struct Gate {
  Lever lever = Lever::kAlwaysOpen;
  uint32_t choices = 0;
  // Of the choices, those that open it only on a device where the arm was measured to be faster.
  uint32_t where_faster = 0;
  int faster_rows = 0;  // and for at most so many rows

  bool Open(const LeverSet& levers, Family family, bool is_faster = true) const;
};

}  // namespace fulcrum
