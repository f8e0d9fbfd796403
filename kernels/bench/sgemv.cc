// SPDX-License-Identifier: Apache-2.0
// OpenBLAS where CMake found it.
#include "kernels/bench/sgemv.h"

#ifdef FULCRUM_HAS_OPENBLAS
#include <cblas.h>

#include <chrono>

#include "kernels/cpu/host_buffer.h"
#include "kernels/formats/q2_0.h"
#endif

namespace fulcrum::bench {

#ifdef FULCRUM_HAS_OPENBLAS
std::vector<double> TimeSgemv(const WeightSource& source, int threads, int copies, int launches) {
  openblas_set_num_threads(threads);
  const WeightSpec& spec = source.spec();
  std::vector<cpu::HostBuffer> weights;
  std::vector<std::byte> row(static_cast<size_t>(spec.row_bytes()));
  for (int copy = 0; copy < copies; ++copy) {
    absl::StatusOr<cpu::HostBuffer> buffer =
        cpu::HostBuffer::Make(static_cast<size_t>(spec.n * spec.k) * 4);
    if (!buffer.ok()) return {};
    for (int64_t n = 0; n < spec.n; ++n) {
      if (!source.ReadRows(n, 1, row).ok()) return {};
      DecodeQ2Row(row, spec.q2_block,
                  {buffer->as<float>() + n * spec.k, static_cast<size_t>(spec.k)});
    }
    weights.push_back(*std::move(buffer));
  }
  std::vector<float> x(static_cast<size_t>(spec.k), 0.5f), y(static_cast<size_t>(spec.n));
  std::vector<double> seconds;
  for (int i = -copies; i < launches; ++i) {
    const float* const w = weights[static_cast<size_t>((i + copies) % copies)].as<float>();
    const auto start = std::chrono::steady_clock::now();
    cblas_sgemv(CblasRowMajor, CblasNoTrans, static_cast<int>(spec.n), static_cast<int>(spec.k),
                1.0f, w, static_cast<int>(spec.k), x.data(), 1, 0.0f, y.data(), 1);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (i >= 0) seconds.push_back(took.count());
  }
  return seconds;
}
#else
std::vector<double> TimeSgemv(const WeightSource&, int, int, int) { return {}; }
#endif

}  // namespace fulcrum::bench
