// Buffers whose every byte a kernel may not touch is known: the output area is poisoned before a
// launch, and guard bands lie on both sides of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace fulcrum::test {

inline constexpr std::byte kPoison{0x5a};

inline void Poison(std::byte* at, size_t bytes) {
  std::memset(at, std::to_integer<int>(kPoison), bytes);
}
inline bool IsPoison(const std::byte* at, size_t bytes) {
  return std::all_of(at, at + bytes, [](std::byte b) { return b == kPoison; });
}

// `bytes` of poison between two guard bands.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes) : bytes_(bytes), all_(bytes + 2 * kGuard, kPoison) {}
  std::byte* data() { return all_.data() + kGuard; }
  size_t size() const { return bytes_; }
  bool GuardsIntact() const {
    return IsPoison(all_.data(), kGuard) && IsPoison(all_.data() + kGuard + bytes_, kGuard);
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_;
  std::vector<std::byte> all_;
};

}  // namespace fulcrum::test
