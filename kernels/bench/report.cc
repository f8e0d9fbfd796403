// SPDX-License-Identifier: Apache-2.0
// Arithmetic and text of a cell: median, best, p10 and p90, and shares of what the machine can do.
#include "kernels/bench/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace fulcrum::bench {
namespace {

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

double BytesPerSecond(const Cell& cell) {
  return static_cast<double>(cell.bytes) / Quantile(cell.seconds, 0.5);
}
double FmasPerSecond(const Cell& cell) {
  return static_cast<double>(cell.n * cell.k) * cell.m / Quantile(cell.seconds, 0.5);
}

}  // namespace

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(q * static_cast<double>(values.size() - 1)))];
}

std::string Header(const Yardsticks& best) {
  return absl::StrFormat(
      "%s, %d threads: read %.1f GB/s, FP32 multiply-add %.1f G/s\n"
      "%-26s %8s %7s %4s %10s %10s %10s %8s %7s %8s %7s\n",
      best.device, best.threads, best.read_bytes / 1e9, best.fmas / 1e9, "arm", "N", "K", "M",
      "median us", "best", "p90", "GB/s", "% read", "GFMA/s", "% FMA");
}

std::string Row(const Cell& cell, const Yardsticks& best) {
  return absl::StrFormat("%-26s %8d %7d %4d %10.1f %10.1f %10.1f %8.2f %7.1f %8.1f %7.1f\n",
                         cell.arm, cell.n, cell.k, cell.m, Quantile(cell.seconds, 0.5) * 1e6,
                         Quantile(cell.seconds, 0.0) * 1e6, Quantile(cell.seconds, 0.9) * 1e6,
                         BytesPerSecond(cell) / 1e9, Percent(BytesPerSecond(cell), best.read_bytes),
                         FmasPerSecond(cell) / 1e9, Percent(FmasPerSecond(cell), best.fmas));
}

std::string Json(const Cell& cell, const Yardsticks& best) {
  return absl::StrFormat(
      "{\"arm\":\"%s\",\"n\":%d,\"k\":%d,\"m\":%d,\"launches\":%d,\"copies\":%d,"
      "\"median_us\":%.2f,\"p10_us\":%.2f,\"p90_us\":%.2f,\"bytes\":%d,\"gb_per_s\":%.3f,"
      "\"percent_read\":%.2f,\"gfma_per_s\":%.2f,\"percent_fma\":%.2f,\"device\":\"%s\","
      "\"threads\":%d,\"read_gb_per_s\":%.2f,\"peak_gfma_per_s\":%.2f}\n",
      cell.arm, cell.n, cell.k, cell.m, cell.seconds.size(), cell.copies,
      Quantile(cell.seconds, 0.5) * 1e6, Quantile(cell.seconds, 0.1) * 1e6,
      Quantile(cell.seconds, 0.9) * 1e6, cell.bytes, BytesPerSecond(cell) / 1e9,
      Percent(BytesPerSecond(cell), best.read_bytes), FmasPerSecond(cell) / 1e9,
      Percent(FmasPerSecond(cell), best.fmas), best.device, best.threads, best.read_bytes / 1e9,
      best.fmas / 1e9);
}

}  // namespace fulcrum::bench
