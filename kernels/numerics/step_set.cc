// See step_set.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/step_set.h"

#include <cstddef>

#include "kernels/formats/fp8_block128.h"
#include "kernels/numerics/splitmix.h"

namespace fulcrum::numerics {
namespace {

enum class Kind : uint8_t {
  kOrdinary,
  kE4m3,
  kWide,
  kAnyFinite,
  kCancelling,
  kSubnormal,
  kTiny,
  kOverflowing,
  kNonFinite,
};
constexpr int kKinds = 9;
constexpr uint32_t kInfinity = 0x7f800000u, kNan = 0x7fffffffu;

// The same set from the same seed on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t Bits() { return static_cast<uint32_t>(SplitMix(state_ += kSplitMixStep) >> 32); }
  // A value of random sign and fraction whose exponent field lies in [low, high]: 0 is subnormal,
  // 127 belongs to 1, 255 to infinities and NaN.
  uint32_t F32(uint32_t low, uint32_t high) {
    const uint32_t exponent = low + Bits() % (high - low + 1);
    return exponent << 23 | (Bits() & 0x807fffffu);
  }
  uint16_t E4m3() {  // a finite code
    const auto code = static_cast<uint8_t>(Bits());
    return E4m3ToBf16(IsE4m3Nan(code) ? 0 : code);
  }
  uint16_t Bf16(uint32_t low, uint32_t high) { return static_cast<uint16_t>(F32(low, high) >> 16); }

 private:
  uint64_t state_;
};

// Exponent fields of what a tile holds: its rows, its columns, its accumulators.
struct Range {
  uint32_t low, high;
};
struct Ranges {
  Range a, b, c;
};
Ranges RangesOf(Kind kind) {
  switch (kind) {
    case Kind::kOrdinary:
    case Kind::kE4m3:
    case Kind::kCancelling:
    case Kind::kNonFinite:
      return {{123, 131}, {123, 131}, {121, 133}};
    case Kind::kWide:
      return {{97, 157}, {97, 157}, {87, 167}};
    case Kind::kAnyFinite:  // products of every size up to the largest finite one
      return {{0, 190}, {0, 190}, {0, 254}};
    case Kind::kSubnormal:  // products around the least normal F32, of a factor around the least
                            // BF16
      return {{0, 2}, {108, 122}, {0, 1}};
    case Kind::kTiny:  // products about as often below the least subnormal F32 as above it
      return {{0, 20}, {85, 112}, {0, 0}};
    case Kind::kOverflowing:
      return {{186, 190}, {186, 190}, {250, 254}};
  }
  return {};
}

// One in 256 becomes an infinity or, as often, a NaN.
void SprinkleNonFinite(Random& random, std::span<uint16_t> values) {
  for (uint16_t& value : values) {
    const uint32_t bits = random.Bits();
    if (bits % 256 == 0)
      value = static_cast<uint16_t>(bits >> 16 & (bits & 256 ? 0x8000 : 0xffff)) | 0x7f80;
  }
}

void FillTile(Kind kind, Random& random, uint16_t* a, uint16_t* b, uint32_t* c) {
  constexpr int kA = StepSet::kRows * StepSet::kK, kB = StepSet::kColumns * StepSet::kK;
  const Ranges ranges = RangesOf(kind);
  for (int i = 0; i < kA; ++i) {
    a[i] = kind == Kind::kE4m3 ? random.E4m3() : random.Bf16(ranges.a.low, ranges.a.high);
  }
  for (int i = 0; i < kB; ++i) b[i] = random.Bf16(ranges.b.low, ranges.b.high);
  if (kind == Kind::kCancelling) {
    // Products 2 i and 2 i + 1 of a step cancel, all but what one last bit of a row makes.
    for (int i = 0; i < kA; i += 2) a[i + 1] = a[i] ^ (random.Bits() % 8 == 0 ? 1 : 0);
    for (int i = 0; i < kB; i += 2) b[i + 1] = b[i] ^ 0x8000;
  }
  if (kind == Kind::kNonFinite) {
    SprinkleNonFinite(random, {a, kA});
    SprinkleNonFinite(random, {b, kB});
  }
  for (int i = 0; i < StepSet::kRows * StepSet::kColumns; ++i) {
    c[i] =
        random.Bits() % 8 == 0 || kind == Kind::kTiny ? 0 : random.F32(ranges.c.low, ranges.c.high);
    // As steps leave them: no other NaN.
    if (kind == Kind::kNonFinite && i % 64 == 1) c[i] = i % 128 == 1 ? kInfinity : kNan;
  }
}

bool SameButForTheSignOfZero(uint32_t x, uint32_t y) { return x == y || (x | y) << 1 == 0; }

}  // namespace

StepSet MakeStepSet(int tiles, uint64_t seed) {
  const auto count = static_cast<size_t>(tiles);
  StepSet set;
  set.tiles = tiles;
  set.a.resize(count * StepSet::kRows * StepSet::kK);
  set.b.resize(count * StepSet::kColumns * StepSet::kK);
  set.c.resize(count * StepSet::kRows * StepSet::kColumns);
  Random random(seed);
  for (size_t tile = 0; tile < count; ++tile) {
    FillTile(static_cast<Kind>(tile % kKinds), random,
             set.a.data() + tile * StepSet::kRows * StepSet::kK,
             set.b.data() + tile * StepSet::kColumns * StepSet::kK,
             set.c.data() + tile * StepSet::kRows * StepSet::kColumns);
  }
  return set;
}

int64_t CountAgreeing(const StepSet& set, std::span<const uint32_t> results, StepFunction step) {
  int64_t agreeing = 0;
  for (size_t i = 0; i < set.c.size(); ++i) {
    const size_t row = i / StepSet::kColumns;  // of all tiles
    const size_t column = row / StepSet::kRows * StepSet::kColumns + i % StepSet::kColumns;
    const uint16_t* const a = set.a.data() + row * StepSet::kK;
    const uint16_t* const b = set.b.data() + column * StepSet::kK;
    uint32_t sum = set.c[i];
    for (int k = 0; k < StepSet::kK; k += 16) sum = step(a + k, b + k, sum);
    agreeing += SameButForTheSignOfZero(sum, results[i]);
  }
  return agreeing;
}

}  // namespace fulcrum::numerics
