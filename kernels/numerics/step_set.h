// A seeded set of tensor-core steps that tells devices and models apart: whether a device computes
// as tensor_core.h says is a question to ask it, not to read off its name. How a device is asked is
// its backend's; this file makes the questions and counts the right answers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fulcrum::numerics {

// Tiles of 64 rows by 8 columns. An output is a chain of kSteps steps of 16 products each, begun at
// its own accumulator.
struct StepSet {
  static constexpr int kRows = 64, kColumns = 8, kSteps = 2, kK = 16 * kSteps;

  int tiles = 0;
  std::vector<uint16_t> a;  // BF16 bits [tiles][kRows][kK]
  std::vector<uint16_t> b;  // BF16 bits [tiles][kColumns][kK]
  std::vector<uint32_t> c;  // F32 bits [tiles][kRows][kColumns]: where the chains begin
};

// Tiles take turns in what they hold: ordinary values, E4M3 weights against them, a wide spread of
// exponents, a wider one, pairs that cancel, subnormals, what is smaller still and added up from
// nothing, sums that overflow, NaN and infinities among ordinary values. Other accumulators are of
// their tile's kind, some of them zero.
StepSet MakeStepSet(int tiles, uint64_t seed);

// One step of a model: tensor_core.h's, or another one that must be told from it.
using StepFunction = uint32_t (*)(const uint16_t* a, const uint16_t* b, uint32_t c);

// How many of `results` (F32 bits [tiles][kRows][kColumns]) are what the model computes. A zero may
// have either sign: the model leaves that of a sum below every subnormal open, and no sum of an arm
// depends on it.
int64_t CountAgreeing(const StepSet& set, std::span<const uint32_t> results, StepFunction step);

}  // namespace fulcrum::numerics
