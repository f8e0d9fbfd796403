// The activation quantiser of the q2_0 arms, one chunk of 32 at a time; the rule is in the header.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/formats/q8_activation.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/formats/bf16.h"

namespace fulcrum {
namespace {

constexpr size_t kChunk = 32;
constexpr float kLargestQ = 127;

}  // namespace

void QuantizeQ8Row(std::span<const uint16_t> x, std::span<int8_t> q, std::span<float> d) {
  assert(d.size() == (x.size() + kChunk - 1) / kChunk && q.size() == d.size() * kChunk);
  for (size_t chunk = 0; chunk < d.size(); ++chunk) {
    const size_t first = chunk * kChunk;
    const size_t length = std::min(kChunk, x.size() - first);
    const std::span<int8_t> out = q.subspan(first, kChunk);
    std::fill(out.begin(), out.end(), static_cast<int8_t>(0));

    float amax = 0;
    bool finite = true;
    for (const uint16_t bits : x.subspan(first, length)) {
      const float magnitude = std::fabs(Bf16ToF32(bits));
      finite = finite && std::isfinite(magnitude);
      amax = std::max(amax, magnitude);
    }
    if (!finite) {
      d[chunk] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    d[chunk] = amax / kLargestQ;
    if (d[chunk] == 0) continue;
    for (size_t i = 0; i < length; ++i) {
      // std::round takes halves away from zero. The clamp is the rule's: no BF16 value reaches it,
      // since even the coarsest (subnormal) scale leaves the ratio below 127.5.
      const float ratio = std::round(Bf16ToF32(x[first + i]) / d[chunk]);
      out[i] = static_cast<int8_t>(std::clamp(ratio, -kLargestQ, kLargestQ));
    }
  }
}

}  // namespace fulcrum
