// The library's arm: within the budget of its class where the library multiplies, bytewise our own
// kernel's where it does not, and nowhere behind the rows it was given. Scales in the wrong layout
// run at full speed and look almost right: they must be seen. Without a device, what is said when
// there is no library.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/w8a8/cublaslt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "kernels/cuda/arms.h"
#include "kernels/cuda/w8a8/w8a8.h"
#include "kernels/numerics/budget.h"
#include "tests/kernels/cuda/cuda_cases.h"

namespace fulcrum::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CublasLt, SaysWhyItIsMissing) {
  const char* const not_there[] = {"libfulcrum_is_not_there.so.1", "libfulcrum_nor_there.so"};
  const auto none = CublasLt::Open(0, not_there);
  EXPECT_TRUE(absl::IsUnavailable(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("libfulcrum_nor_there.so"));
  const char* const other[] = {"libm.so.6"};
  const auto wrong = CublasLt::Open(0, other);
  EXPECT_TRUE(absl::IsUnavailable(wrong.status()));
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("cublasLt"));
}

struct Size {
  int64_t n, k;
};

// A launch: rows, output, and which kernel multiplies.
struct How {
  int m = 0;
  DType type = DType::kF32;
  int64_t pitch = 0;  // 0: N
  int room = 0;
  bool library = true;
  ArmFn arm = &w8a8_cublaslt;
};

class CublasLtTest : public ::testing::Test {
 protected:
  static constexpr size_t kGuard = 4096;

  void SetUp() override {
    cuda_ = test::OpenBackend("cuda", {.w8a8 = true, .w8a8_library = true});
    if (cuda_.backend == nullptr) return;
    if ((cuda_.backend->device().caps & kCapBlockScaled) == 0) {
      unable_ = "not for this device";
      return;
    }
    absl::StatusOr<std::unique_ptr<CublasLt>> library = CublasLt::Open(0);
    if (!library.ok()) {
      unable_ = std::string(library.status().message());
      return;
    }
    library_ = *std::move(library);
    EXPECT_NE(cuda_.backend->device().caps & kCapLibrary, 0u);
    ASSERT_TRUE(Grow(scratch_, 0, static_cast<size_t>(kScratchBytes)).ok());
  }

  // A weight and activations of up to `most` rows.
  void Make(Size size, int most) {
    size_ = size;
    source_ = std::make_unique<test::MemoryWeight>(
        test::RandomFp8(size.n, size.k, test::WeightKind::kGaussian, 4));
    auto weight = cuda_.backend->Upload(*source_);
    ASSERT_TRUE(weight.ok()) << weight.status();
    weight_ = *weight;
    x_ = Gaussian(most, size.k);
    const auto pitch = static_cast<size_t>(PaddedK(size.k)) * 2,
               row = static_cast<size_t>(size.k) * 2;
    rows_ = DeviceBuffer();
    ASSERT_TRUE(Grow(rows_, 0, pitch * static_cast<size_t>(most)).ok());
    ASSERT_EQ(cudaMemset(rows_.data(), 0, rows_.size()), cudaSuccess);
    ASSERT_EQ(cudaMemcpy2D(rows_.data(), pitch, x_.data(), row, row, static_cast<size_t>(most),
                           cudaMemcpyDefault),
              cudaSuccess);
  }

  // The outputs [m][n]; what the arm may not write must still be poison.
  std::vector<float> Run(const How& how) {
    const int64_t pitch = how.pitch > 0 ? how.pitch : size_.n;
    const size_t element = SizeOf(how.type), row = static_cast<size_t>(pitch) * element;
    const int most = std::max(how.m, how.room);
    EXPECT_TRUE(Grow(output_, 0, row * static_cast<size_t>(most) + kGuard).ok());
    EXPECT_EQ(cudaMemset(output_.data(), 0xa5, output_.size()), cudaSuccess);
    absl::StatusOr<CudaContext> context = ContextOf(0, cuda_.backend->device());
    EXPECT_TRUE(context.ok()) << context.status();
    context->scratch = scratch_.data();
    context->scratch_bytes = static_cast<int64_t>(scratch_.size());
    context->library = how.library ? library_.get() : nullptr;
    const absl::Status ran = how.arm({.weight = weight_.get(),
                                      .activations = rows_.data(),
                                      .activation_pitch = PaddedK(size_.k),
                                      .output = output_.data(),
                                      .output_type = how.type,
                                      .output_pitch = pitch,
                                      .m = how.m,
                                      .output_room = how.room,
                                      .context = &*context});
    EXPECT_TRUE(ran.ok()) << ran;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    Bytes bytes(output_.size());
    EXPECT_EQ(cudaMemcpy(bytes.data(), output_.data(), bytes.size(), cudaMemcpyDefault),
              cudaSuccess);
    const auto poison = [](std::byte b) { return b == std::byte{0xa5}; };
    const size_t own = static_cast<size_t>(size_.n) * element;
    std::vector<float> values;
    for (size_t i = 0; i < static_cast<size_t>(most); ++i) {
      const std::byte* const at = bytes.data() + i * row;
      EXPECT_TRUE(std::all_of(at + own, at + row, poison)) << "columns beyond N of row " << i;
      if (i >= static_cast<size_t>(how.m)) continue;
      for (size_t n = 0; n < static_cast<size_t>(size_.n); ++n) {
        float value = 0;
        uint16_t bits = 0;
        std::memcpy(how.type == DType::kF32 ? static_cast<void*>(&value) : &bits, at + n * element,
                    element);
        values.push_back(how.type == DType::kF32 ? value : Bf16ToF32(bits));
      }
    }
    EXPECT_TRUE(std::all_of(bytes.data() + row * static_cast<size_t>(most),
                            bytes.data() + bytes.size(), poison))
        << "behind the last row";
    return values;
  }

  std::vector<float> Own(How how) {
    how.arm = &w8a8_blockscaled;
    return Run(how);
  }

  // Runs it; whether the library multiplied. Where it did not, the bits are our own kernel's.
  bool Multiplies(const How& how) {
    const int64_t before = library_->counts().products;
    const std::vector<float> found = Run(how), own = Own(how);
    const bool multiplied = library_->counts().products > before;
    if (multiplied) {
      // The same codes and scales, in another order of sums.
      const std::vector<double> expected(own.begin(), own.end());
      const numerics::Verdict verdict = numerics::CheckW8A8Budget(expected, found, how.m, size_.n);
      EXPECT_TRUE(verdict.ok) << "apart from our own kernel: " << verdict.Describe();
    } else {
      EXPECT_EQ(std::memcmp(found.data(), own.data(), own.size() * 4), 0);
    }
    return multiplied;
  }

  test::BackendUnderTest cuda_;
  std::string unable_;
  std::unique_ptr<CublasLt> library_;
  Size size_ = {};
  std::unique_ptr<test::MemoryWeight> source_;
  std::shared_ptr<ResidentWeight> weight_;
  std::vector<uint16_t> x_;
  DeviceBuffer rows_, output_, scratch_;
};

#define FULCRUM_NEED_LIBRARY() \
  FULCRUM_NEED_BACKEND(cuda_); \
  if (!unable_.empty()) GTEST_SKIP() << unable_

TEST_F(CublasLtTest, IsWithinTheBudgetAtEveryMNAndK) {
  FULCRUM_NEED_LIBRARY();
  constexpr int kMost = 1193;
  // Whole; K ragged in its last block; N ragged, and rows of BF16 that the library does not take;
  // blocks of K that it does not take.
  for (const Size size : {Size{384, 2560}, Size{200, 2496}, Size{700, 512}, Size{129, 576}}) {
    Make(size, kMost);
    if (HasFatalFailure()) return;
    std::vector<double> exact(static_cast<size_t>(kMost * size.n));
    ASSERT_TRUE(numerics::Float64Product(*source_, 0, size.n, x_, kMost, exact).ok());
    for (const int m : {1, 4, 31, 512, kMost}) {
      for (const DType type : {DType::kBf16, DType::kF32}) {
        SCOPED_TRACE(testing::Message() << "N=" << size.n << " K=" << size.k << " M=" << m
                                        << (type == DType::kF32 ? " f32" : " bf16"));
        const How how = {.m = m, .type = type, .room = LibraryRows(m)};
        const bool multiplied = Multiplies(how);
        std::printf("  N %4d K %4d M %4d %s: %s\n", static_cast<int>(size.n),
                    static_cast<int>(size.k), m, type == DType::kF32 ? "f32 " : "bf16",
                    multiplied ? "the library" : "our own kernel");
        if (size.n == 384 && type == DType::kBf16 && m >= 512) {
          EXPECT_TRUE(multiplied);
        }
        if (size.k == 576) {
          EXPECT_FALSE(multiplied);
        }
        if (m * size.n < 300) continue;  // too few for a mean
        const auto expected = std::span(exact).first(static_cast<size_t>(m * size.n));
        const numerics::Verdict verdict = numerics::CheckW8A8Budget(expected, Run(how), m, size.n);
        EXPECT_TRUE(verdict.ok) << verdict.Describe();
      }
    }
  }
}

TEST_F(CublasLtTest, RightScalesPassAndTheSameScalesInTheWrongLayoutDoNot) {
  FULCRUM_NEED_LIBRARY();
  constexpr int kM = 512, kBlocks = 20;
  Make({384, kBlocks * kBlockK}, kM);
  if (HasFatalFailure()) return;
  std::vector<double> exact(static_cast<size_t>(kM * size_.n));
  ASSERT_TRUE(numerics::Float64Product(*source_, 0, size_.n, x_, kM, exact).ok());
  const QuantisedRows quantised = {
      .codes = scratch_.data(),
      .scales = reinterpret_cast<float*>(scratch_.data() + kM * size_.k),
      .scale_pitch = kM};
  ASSERT_EQ(QuantiseRows(reinterpret_cast<const uint16_t*>(rows_.data()), size_.k, kM, kBlocks,
                         quantised, nullptr),
            cudaSuccess);
  std::vector<float> scales(kM * kBlocks);
  ASSERT_EQ(cudaMemcpy(scales.data(), quantised.scales, scales.size() * 4, cudaMemcpyDefault),
            cudaSuccess);
  const auto& weight = static_cast<const CudaWeight&>(*weight_);
  ASSERT_TRUE(Grow(output_, 0, exact.size() * 2).ok());
  const auto with = [&](const std::vector<float>& given) {
    EXPECT_EQ(cudaMemcpy(quantised.scales, given.data(), given.size() * 4, cudaMemcpyDefault),
              cudaSuccess);
    EXPECT_TRUE(library_->Multiply({.m = kM,
                                    .n = size_.n,
                                    .k = size_.k,
                                    .weights = weight.rows(),
                                    .activations = quantised.codes,
                                    .output = output_.data(),
                                    .output_pitch = size_.n,
                                    .weight_scales = weight.scales(),
                                    .activation_scales = quantised.scales},
                                   nullptr));
    std::vector<uint16_t> bits(exact.size());
    EXPECT_EQ(cudaMemcpy(bits.data(), output_.data(), bits.size() * 2, cudaMemcpyDefault),
              cudaSuccess);
    std::vector<float> values(bits.size());
    std::ranges::transform(bits, values.begin(), Bf16ToF32);
    return numerics::CheckW8A8Budget(exact, values, kM, size_.n);
  };
  const numerics::Verdict right = with(scales);
  EXPECT_TRUE(right.ok) << right.Describe();

  std::vector<float> by_token(scales.size()), late = scales;
  for (int token = 0; token < kM; ++token) {
    for (int block = 0; block < kBlocks; ++block) {
      by_token[token * kBlocks + block] = scales[block * kM + token];
    }
  }
  std::rotate(late.begin(), late.begin() + kM, late.end());
  for (const std::vector<float>& wrong : {by_token, late}) {
    const numerics::Verdict verdict = with(wrong);
    EXPECT_FALSE(verdict.ok) << verdict.Describe();
    EXPECT_GT(verdict.relative_rms, 3 * right.relative_rms);
  }
}

TEST_F(CublasLtTest, WithoutRoomOrLibraryOurOwnKernelRuns) {
  FULCRUM_NEED_LIBRARY();
  Make({384, 2560}, 512);
  if (HasFatalFailure()) return;
  for (const int m : {509, 510, 511}) {
    SCOPED_TRACE(m);
    EXPECT_FALSE(Multiplies({.m = m, .type = DType::kBf16}));
    EXPECT_FALSE(Multiplies({.m = m, .type = DType::kBf16, .room = 511}));
    EXPECT_TRUE(Multiplies({.m = m, .type = DType::kBf16, .room = 512}));
  }
  EXPECT_TRUE(Multiplies({.m = 512, .type = DType::kBf16}));  // needs none
  EXPECT_FALSE(Multiplies({.m = 512, .type = DType::kBf16, .library = false}));
}

TEST_F(CublasLtTest, OutputsMayBeApart) {
  FULCRUM_NEED_LIBRARY();
  Make({384, 2560}, 512);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(Multiplies({.m = 512, .type = DType::kBf16, .pitch = 512}));
  EXPECT_TRUE(Multiplies({.m = 509, .type = DType::kBf16, .pitch = 392, .room = 512}));
  // Rows that do not begin where the library needs them to.
  EXPECT_FALSE(Multiplies({.m = 512, .type = DType::kBf16, .pitch = 386}));
}

TEST_F(CublasLtTest, MoreRowsThanTheScratchHoldsGoInPieces) {
  FULCRUM_NEED_LIBRARY();
  constexpr int64_t kK = 17408;
  constexpr int kFit =
      static_cast<int>(kScratchBytes / (kK + 4 * kK / kBlockK) / kTokenTile * kTokenTile);
  Make({128, kK}, kFit + 255);
  if (HasFatalFailure()) return;
  const int64_t before = library_->counts().products;
  // Only the last piece has no room: that one is ours.
  EXPECT_TRUE(Multiplies({.m = kFit + 255, .type = DType::kBf16}));
  EXPECT_EQ(library_->counts().products, before + 1);
  EXPECT_TRUE(Multiplies({.m = kFit + 255, .type = DType::kBf16, .room = kFit + 256}));
  EXPECT_EQ(library_->counts().products, before + 3);
}

TEST_F(CublasLtTest, IsAskedOnceForAProblemAndForgetsInTheEnd) {
  FULCRUM_NEED_LIBRARY();
  Make({384, 2560}, 512);
  if (HasFatalFailure()) return;
  for (int i = 0; i < 5; ++i) Run({.m = 512 - i, .type = DType::kBf16, .room = 512});
  EXPECT_EQ(library_->counts().asked, 2);  // 509 to 512 rows are one problem, 508 another
  EXPECT_EQ(library_->counts().products, 5);
  const auto& weight = static_cast<const CudaWeight&>(*weight_);
  LtProblem problem = {.n = 384,
                       .k = 2560,
                       .weights = weight.rows(),
                       .activations = scratch_.data(),
                       .output = output_.data(),
                       .output_pitch = 384,
                       .weight_scales = weight.scales(),
                       .activation_scales = reinterpret_cast<float*>(scratch_.data())};
  for (size_t i = 1; i <= CublasLt::kMostPlans + 10; ++i) {
    problem.m = static_cast<int>(i) * kLibraryRows;
    library_->Takes(problem);
    ASSERT_LE(library_->counts().plans, CublasLt::kMostPlans);
  }
  EXPECT_LT(library_->counts().plans, CublasLt::kMostPlans);
}

TEST_F(CublasLtTest, CapabilityIsThereOnlyWhereTheLibraryWasAskedFor) {
  FULCRUM_NEED_LIBRARY();
  const test::BackendUnderTest own = test::OpenBackend("cuda", {.w8a8 = true});
  ASSERT_NE(own.backend, nullptr) << own.missing;
  EXPECT_EQ(own.backend->device().caps & (kCapBlockScaled | kCapLibrary), kCapBlockScaled);
  // As on a machine without it.
  const auto without = MakeCudaBackends(0, /*w8a8=*/true, kCapLibrary, /*library=*/true);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->front()->device().caps & kCapLibrary, 0u);
}

TEST_F(CublasLtTest, TheSlotHasRoomForTheLibrarysRows) {
  FULCRUM_NEED_LIBRARY();
  constexpr int kM = 1365;  // fills what a slot takes for so many to less than a row
  Make({384, 2560}, 1);
  if (HasFatalFailure()) return;
  const std::span<const Arm> ladder = cuda_.backend->ladder();
  for (const std::string_view name : {"w8a8_blockscaled", "w8a8_cublaslt"}) {
    const auto arm = std::ranges::find(ladder, name, &Arm::name);
    ASSERT_NE(arm, ladder.end());
    const LaunchTarget target = {.arm = &*arm, .weight = weight_.get()};
    const Launch launch = {.targets = std::span(&target, 1), .m = kM};
    CudaSlot slot(0);
    const size_t bytes = size_t{kM} * 384 * 2;
    ASSERT_TRUE(slot.Reserve(size_t{kM} * 2560 * 2, std::span(&bytes, 1)).ok());
    ASSERT_TRUE(slot.Prepare(launch, /*host_outputs=*/true, /*alone=*/true).ok());
    EXPECT_EQ(slot.OutputRoom(launch, 0), (arm->needs & kCapLibrary) != 0 ? LibraryRows(kM) : kM);
  }
}

// Launches of several slots share the library's workspace and its choices.
TEST_F(CublasLtTest, SlotsAtOnceGiveWhatEachGivesAlone) {
  FULCRUM_NEED_LIBRARY();
  constexpr int kSlots = 4, kRounds = 25;
  Make({384, 2560}, 512);
  if (HasFatalFailure()) return;
  const std::span<const Arm> ladder = cuda_.backend->ladder();
  const auto arm = std::ranges::find(ladder, "w8a8_cublaslt", &Arm::name);
  ASSERT_NE(arm, ladder.end());
  constexpr int kRows[kSlots] = {512, 509, 64, 31};
  const auto run = [&](int slot) {
    auto out = test::RunPoisoned(*cuda_.backend, *arm, *weight_, x_, kRows[slot], DType::kBf16);
    EXPECT_TRUE(out.ok()) << out.status();
    return out.ok() ? *std::move(out) : Bytes();
  };
  Bytes alone[kSlots];
  for (int i = 0; i < kSlots; ++i) alone[i] = run(i);
  std::atomic<int> differences = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kSlots; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        if (run(i) != alone[i]) ++differences;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differences, 0);
}

}  // namespace
}  // namespace fulcrum::cuda
