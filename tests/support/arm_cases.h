// What every backend's arms are tested with: the compiled-in backends as test parameters, a launch
// into poisoned memory, and the comparison with the oracle, byte by byte.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/backend_factory.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/oracle.h"
#include "tests/support/poison.h"

namespace fulcrum::test {

// A backend that was compiled in, with its first device or the reason why there is none.
// FULCRUM_TEST_WITHOUT_CAPS, DeviceCap bits, makes of a CUDA device an older one: its arms are run
// where no such device is at hand, and compute-sanitizer's racecheck, which clusters of thread
// blocks break, can follow the rest.
struct BackendUnderTest {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::string missing;
};
inline BackendUnderTest OpenBackend(std::string_view name, BackendOptions options = {}) {
  if (const char* without = std::getenv("FULCRUM_TEST_WITHOUT_CAPS"); without != nullptr) {
    options.without_caps = static_cast<uint32_t>(std::strtoul(without, nullptr, 0));
  }
  absl::StatusOr<std::vector<std::unique_ptr<Backend>>> made = MakeBackends(name, options);
  BackendUnderTest result{.name = std::string(name), .backend = nullptr, .missing = ""};
  if (made.ok() && !made->empty()) {
    result.backend = std::move(made->front());
  } else {
    result.missing = made.ok() ? "no device" : std::string(made.status().message());
  }
  return result;
}

// Cases are made from what is compiled in, so a missing device cannot make them vanish: it skips,
// and fails where REQUIRE_BACKENDS names the backend.
#define FULCRUM_NEED_BACKEND(under_test)                                                \
  if ((under_test).backend == nullptr) {                                                \
    const char* required = std::getenv("REQUIRE_BACKENDS");                             \
    if (required != nullptr &&                                                          \
        std::string_view(required).find((under_test).name) != std::string_view::npos) { \
      FAIL() << (under_test).name << " is required here: " << (under_test).missing;     \
    }                                                                                   \
    GTEST_SKIP() << (under_test).name << ": " << (under_test).missing;                  \
  }

// Whether the device can run the arm and the oracle defines its bits.
inline bool Pinned(const Backend& backend, const Arm& arm) {
  return (arm.needs & ~backend.device().caps) == 0 && arm.numerics != NumericsClass::kW8A8;
}

// `m` rows of `x` ([m, K] BF16) through one arm; the output bytes [m, n] in `type`. The output and
// what follows it were poison before: what follows must still be, or the result is INTERNAL.
inline absl::StatusOr<std::vector<std::byte>> RunPoisoned(Backend& backend, const Arm& arm,
                                                          const ResidentWeight& weight,
                                                          std::span<const uint16_t> x, int m,
                                                          DType type) {
  constexpr size_t kGuard = 256;
  const size_t bytes = static_cast<size_t>(m) * static_cast<size_t>(weight.spec().n) * SizeOf(type);
  const std::unique_ptr<LaunchSlot> slot = backend.NewSlot();
  const size_t reserved = bytes + kGuard;
  const auto x_count = static_cast<size_t>(m) * static_cast<size_t>(weight.spec().k);
  if (absl::Status s = slot->Reserve(x_count * 2, std::span(&reserved, 1)); !s.ok()) return s;
  std::memcpy(slot->activations(), x.data(), x_count * 2);
  std::byte* const out = slot->output(0);
  Poison(out, reserved);
  const LaunchTarget target = {.arm = &arm, .weight = &weight};
  absl::StatusOr<LaunchTimes> times =
      backend.Run(*slot, {.targets = std::span(&target, 1), .m = m, .output_type = type});
  if (!times.ok()) return times.status();
  if (!IsPoison(out + bytes, kGuard)) return absl::InternalError("wrote past the last output row");
  return std::vector<std::byte>(out, out + bytes);
}

// F32 results of the oracle as the bytes an arm must have stored.
inline std::vector<std::byte> StoredAs(std::span<const float> values, DType type) {
  std::vector<std::byte> bytes(values.size() * SizeOf(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::kF32) {
      std::memcpy(bytes.data() + i * 4, &values[i], 4);
    } else {
      const uint16_t bits = F32ToBf16(values[i]);
      std::memcpy(bytes.data() + i * 2, &bits, 2);
    }
  }
  return bytes;
}

// Index of the first element that differs, -1 when the bytes are the same.
inline int64_t FirstDifference(std::span<const std::byte> a, std::span<const std::byte> b,
                               DType type) {
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) return -1;
  size_t i = 0;
  while (i < std::min(a.size(), b.size()) && a[i] == b[i]) ++i;
  return static_cast<int64_t>(i / SizeOf(type));
}

}  // namespace fulcrum::test
