// SPDX-License-Identifier: Apache-2.0
// Two loops that do nothing but read, and nothing but multiply-add, per instruction set.
#include "kernels/bench/machine.h"

#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bench/machine.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fulcrum::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Returns a value that depends on every byte, so that no read can be left out.
uint32_t ReadAll(const uint8_t* data, int64_t bytes) {
  const hn::ScalableTag<uint32_t> d;
  constexpr int64_t kStep = 256;
  auto a = hn::Zero(d), b = a, c = a, e = a;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i + kStep <= bytes; i += kStep) {
    for (int64_t line = 0; line < kStep; line += 64) hwy::Prefetch(data + i + 2048 + line);
    for (int64_t at = 0; at < kStep / 4; at += 4 * lanes) {
      const auto* words = reinterpret_cast<const uint32_t*>(data + i) + at;
      a = hn::Xor(a, hn::Load(d, words));
      b = hn::Xor(b, hn::Load(d, words + lanes));
      c = hn::Xor(c, hn::Load(d, words + 2 * lanes));
      e = hn::Xor(e, hn::Load(d, words + 3 * lanes));
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(hn::Xor(a, b), hn::Xor(c, e))));
}

// `rounds` rounds of 12 independent chains; returns the multiply-adds done, result to *sink.
int64_t MultiplyAdd(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.5f);
  // Different starts: equal chains would be computed once.
  const auto at = [&](int i) { return hn::Set(d, static_cast<float>(i)); };
  auto a0 = at(0), a1 = at(1), a2 = at(2), a3 = at(3), a4 = at(4), a5 = at(5), a6 = at(6),
       a7 = at(7), a8 = at(8), a9 = at(9), aa = at(10), ab = at(11);
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, x), a1 = hn::MulAdd(a1, x, x), a2 = hn::MulAdd(a2, x, x);
    a3 = hn::MulAdd(a3, x, x), a4 = hn::MulAdd(a4, x, x), a5 = hn::MulAdd(a5, x, x);
    a6 = hn::MulAdd(a6, x, x), a7 = hn::MulAdd(a7, x, x), a8 = hn::MulAdd(a8, x, x);
    a9 = hn::MulAdd(a9, x, x), aa = hn::MulAdd(aa, x, x), ab = hn::MulAdd(ab, x, x);
  }
  const auto sum = hn::Add(
      hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7))),
      hn::Add(hn::Add(a8, a9), hn::Add(aa, ab)));
  *sink = hn::GetLane(hn::SumOfLanes(d, sum));
  return rounds * 12 * static_cast<int64_t>(hn::Lanes(d));
}

}  // namespace fulcrum::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/cpu/host_buffer.h"

namespace fulcrum::bench {
namespace {

HWY_EXPORT(ReadAll);
HWY_EXPORT(MultiplyAdd);

// Wall time of body(thread) on all threads at once: from the moment all are ready.
template <class Body>
double TimeTogether(int threads, const Body& body) {
  std::atomic<int> ready{0};
  std::vector<std::chrono::steady_clock::time_point> begin(threads), end(threads);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ready.fetch_add(1);
      while (ready.load() < threads) hwy::Pause();
      begin[t] = std::chrono::steady_clock::now();
      body(t);
      end[t] = std::chrono::steady_clock::now();
    });
  }
  for (std::thread& worker : workers) worker.join();
  return std::chrono::duration<double>(*std::max_element(end.begin(), end.end()) -
                                       *std::min_element(begin.begin(), begin.end()))
      .count();
}

constexpr int kPasses = 7;

}  // namespace

double ReadBandwidth(int threads, int64_t bytes) {
  absl::StatusOr<cpu::HostBuffer> buffer = cpu::HostBuffer::Make(static_cast<size_t>(bytes) + 4096);
  if (!buffer.ok()) return 0;
  const int64_t part = bytes / threads / 4096 * 4096;
  std::atomic<uint32_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double seconds = TimeTogether(threads, [&](int t) {
      sink.fetch_add(HWY_DYNAMIC_DISPATCH(ReadAll)(buffer->as<const uint8_t>() + t * part, part));
    });
    best = std::max(best, static_cast<double>(part) * threads / seconds);
  }
  return best;
}

double FmaPeak(int threads) {
  constexpr int64_t kRounds = 2000000;
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::atomic<int64_t> done{0};
    std::vector<float> sinks(threads);
    const double seconds = TimeTogether(threads, [&](int t) {
      done.fetch_add(HWY_DYNAMIC_DISPATCH(MultiplyAdd)(kRounds, &sinks[t]));
    });
    best = std::max(best, static_cast<double>(done.load()) / seconds);
  }
  return best;
}

}  // namespace fulcrum::bench
#endif  // HWY_ONCE
