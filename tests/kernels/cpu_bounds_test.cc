// The CPU arms read nothing behind the activations and write nothing behind the output: both end
// where a page begins that may not be touched.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "kernels/cpu/arms.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/arm_cases.h"
#include "tests/support/random_weights.h"

namespace fulcrum::test {
namespace {

// Memory whose last byte is the last of a page; the next page is none.
class BeforeTheEnd {
 public:
  explicit BeforeTheEnd(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t usable = (bytes + page - 1) / page * page;
    mapped_ = usable + page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(base_ + usable, page, PROT_NONE), 0);
    data_ = base_ + usable - bytes;
  }
  ~BeforeTheEnd() { munmap(base_, mapped_); }
  BeforeTheEnd(const BeforeTheEnd&) = delete;
  BeforeTheEnd& operator=(const BeforeTheEnd&) = delete;

  std::byte* data() const { return data_; }

 private:
  size_t mapped_ = 0;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

TEST(CpuBounds, NothingIsTouchedBehindTheLastRow) {
  absl::StatusOr<std::unique_ptr<cpu::CpuBackend>> backend = cpu::CpuBackend::Make(2, 0);
  ASSERT_TRUE(backend.ok()) << backend.status();
  for (const WeightFormat format : kAllWeightFormats) {
    for (const int64_t k : {64, 127, 192, 577}) {
      if (format == WeightFormat::kQ2_0 && k % 64 != 0) continue;
      const MemoryWeight source = RandomWeight(format, 19, k, WeightKind::kUniformCodes, 5);
      const absl::StatusOr<std::shared_ptr<ResidentWeight>> weight = (*backend)->Upload(source);
      ASSERT_TRUE(weight.ok()) << weight.status();
      const std::vector<uint16_t> x =
          RandomActivations(kMaxDecodeRows, k, ActivationKind::kGaussian, 6);
      for (const Arm& arm : cpu::Arms()) {
        if (arm.format != format) continue;
        for (int m = 1; m <= kMaxDecodeRows; ++m) {
          const size_t x_bytes = static_cast<size_t>(m * k) * 2;
          const size_t out_bytes = static_cast<size_t>(m * 19) * 4;
          const BeforeTheEnd activations(x_bytes), output(out_bytes);
          std::memcpy(activations.data(), x.data(), x_bytes);
          ASSERT_TRUE((*backend)
                          ->RunArm(arm, {.weight = weight->get(),
                                         .activations = activations.data(),
                                         .activation_pitch = k,
                                         .output = output.data(),
                                         .output_type = DType::kF32,
                                         .output_pitch = 19,
                                         .m = m})
                          .ok());
          const absl::StatusOr<std::vector<std::byte>> expected =
              RunPoisoned(**backend, arm, **weight, x, m, DType::kF32);
          ASSERT_TRUE(expected.ok()) << expected.status();
          ASSERT_EQ(std::memcmp(output.data(), expected->data(), out_bytes), 0)
              << arm.name << " K = " << k << " M = " << m;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fulcrum::test
