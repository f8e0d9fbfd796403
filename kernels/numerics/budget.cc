// The budget's arithmetic. All of it is in float64, so that a tolerance is never lost to the
// rounding of the check itself.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/numerics/budget.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/formats/bf16.h"

namespace fulcrum::numerics {
namespace {

constexpr int64_t kMaxBf16Distance = 2;
constexpr double kFloor = 8 * 0x1p-24;  // times sqrt(K) * rms(reference row)
constexpr double kBf16RelativeRms = 1e-3;
constexpr double kF32RelativeRms = 1e-5;
constexpr double kQ2RelativeNorm = 3e-2;
constexpr double kW8A8RelativeRms = 3e-2;
constexpr int64_t kNoDistance = std::numeric_limits<int64_t>::max();

// Order-preserving integers of sign-and-magnitude bits; both zeros are 0.
int64_t Ordinal(uint32_t bits, uint32_t sign_bit) {
  const int64_t magnitude = bits & (sign_bit - 1);
  return bits & sign_bit ? -magnitude : magnitude;
}

// Rounds once to BF16. Going through F32 by nearest would round twice and can miss by one; cutting
// to F32 and setting the last bit when anything was lost keeps the tie-break honest.
uint16_t F64ToBf16(double value) {
  float narrow = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(narrow) == value) return F32ToBf16(narrow);
  uint32_t bits = std::bit_cast<uint32_t>(narrow);
  if (std::fabs(static_cast<double>(narrow)) > std::fabs(value)) --bits;
  return F32ToBf16(std::bit_cast<float>(bits | 1));
}

float RoundTo(DType type, double value) {
  return type == DType::kBf16 ? Bf16ToF32(F64ToBf16(value)) : static_cast<float>(value);
}

int64_t Distance(DType type, float a, float b) {
  return type == DType::kBf16 ? Bf16Distance(F32ToBf16(a), F32ToBf16(b)) : F32Distance(a, b);
}

// Both NaN, or the same infinity.
bool SameNonFinite(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

// sqrt(mean of squares) of the finite values of a row; 0 when there are none.
double Rms(std::span<const double> row) {
  double sum = 0;
  int64_t count = 0;
  for (const double v : row) {
    if (!std::isfinite(v)) continue;
    sum += v * v;
    ++count;
  }
  return count ? std::sqrt(sum / static_cast<double>(count)) : 0;
}

double Relative(double error2, double reference2) {
  if (error2 == 0) return 0;
  return reference2 == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error2 / reference2);
}

// Walks the compared elements, keeping the verdict's statistics.
class Tally {
 public:
  Tally(std::span<const double> reference, std::span<const float> actual, int m, int64_t n,
        DType type)
      : reference_(reference), actual_(actual), n_(n), type_(type) {
    assert(static_cast<int64_t>(reference.size()) == m * n && actual.size() == reference.size());
    verdict_.elements = m * n;
  }

  // Compares one row. `reference_row` is what counts as the reference (rounded or not); an element
  // fails when it is further off than `floor` and more than `max_distance` values away.
  // Returns the sum of squared errors over the finite elements.
  double Row(int row, std::span<const double> reference_row, double floor, int64_t max_distance) {
    double row_error2 = 0;
    for (int64_t col = 0; col < n_; ++col) {
      const double want = reference_row[static_cast<size_t>(col)];
      const float got = actual_[static_cast<size_t>(row * n_ + col)];
      const bool finite = std::isfinite(want) && std::isfinite(got);
      const double error = finite ? std::fabs(got - want) : 0;
      const int64_t distance = finite                     ? Distance(type_, Narrow(want), got)
                               : SameNonFinite(want, got) ? 0
                                                          : kNoDistance;
      const bool over = finite ? error > floor && distance > max_distance : distance != 0;
      verdict_.over += over;
      verdict_.max_ulp = std::max(verdict_.max_ulp, distance);
      verdict_.max_abs = std::max(verdict_.max_abs, error);
      // The worst element is the one to look at: a wrong kind first, then one over its budget, then
      // the largest error.
      const double rank = distance == kNoDistance ? std::numeric_limits<double>::infinity() : error;
      if (verdict_.worst_row < 0 || (over && !worst_is_over_) ||
          (over == worst_is_over_ && rank > worst_rank_)) {
        worst_is_over_ = over;
        worst_rank_ = rank;
        verdict_.worst_row = row;
        verdict_.worst_col = col;
        verdict_.worst_reference = Narrow(want);
        verdict_.worst_actual = got;
      }
      if (!finite) continue;
      row_error2 += error * error;
      error2_ += error * error;
      reference2_ += want * want;
    }
    return row_error2;
  }

  // Fails a whole row at once, for budgets that are stated per row.
  void FailRow() { verdict_.over += n_; }

  // Nothing compared proves nothing, so an empty product is not ok.
  Verdict Finish(double max_relative_rms) {
    verdict_.relative_rms = Relative(error2_, reference2_);
    verdict_.ok =
        verdict_.elements > 0 && verdict_.over == 0 && verdict_.relative_rms <= max_relative_rms;
    return verdict_;
  }

  std::span<const double> ReferenceRow(int row) const {
    return reference_.subspan(static_cast<size_t>(row * n_), static_cast<size_t>(n_));
  }

 private:
  float Narrow(double v) const { return RoundTo(type_, v); }

  std::span<const double> reference_;
  std::span<const float> actual_;
  int64_t n_;
  DType type_;
  Verdict verdict_;
  double error2_ = 0, reference2_ = 0;
  double worst_rank_ = -1;
  bool worst_is_over_ = false;
};

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

}  // namespace

std::string Verdict::Describe() const {
  return absl::StrFormat(
      "%s: %d of %d elements over, largest distance %d, largest |difference| %g, relative rms %g; "
      "worst at [%d, %d]: reference %.9g, actual %.9g",
      ok ? "within budget" : "OUT OF BUDGET", over, elements, max_ulp, max_abs, relative_rms,
      worst_row, worst_col, worst_reference, worst_actual);
}

Verdict CheckBudget(std::span<const double> reference, std::span<const float> actual, int m,
                    int64_t n, int64_t k, DType output_type) {
  Tally tally(reference, actual, m, n, output_type);
  const bool bf16 = output_type == DType::kBf16;
  std::vector<double> rounded(static_cast<size_t>(n));
  for (int row = 0; row < m; ++row) {
    std::ranges::transform(tally.ReferenceRow(row), rounded.begin(),
                           [&](double v) { return RoundTo(output_type, v); });
    const double floor = kFloor * std::sqrt(static_cast<double>(k)) * Rms(rounded);
    tally.Row(row, rounded, floor, bf16 ? kMaxBf16Distance : 0);
  }
  return tally.Finish(bf16 ? kBf16RelativeRms : kF32RelativeRms);
}

Verdict CheckQ2Budget(std::span<const double> reference, std::span<const float> actual, int m,
                      int64_t n, int64_t k, std::span<const double> x_norms, double w_frobenius) {
  assert(static_cast<int>(x_norms.size()) == m);
  Tally tally(reference, actual, m, n, DType::kF32);
  for (int row = 0; row < m; ++row) {
    const double error2 = tally.Row(row, tally.ReferenceRow(row), kNoLimit, 0);
    const double limit = kQ2RelativeNorm * x_norms[static_cast<size_t>(row)] * w_frobenius /
                         std::sqrt(static_cast<double>(k));
    // Written so that a limit that is NaN (norms of a non-finite row) passes no error at all.
    if (error2 > 0 && !(std::sqrt(error2) <= limit)) tally.FailRow();
  }
  return tally.Finish(kNoLimit);
}

Verdict CheckW8A8Budget(std::span<const double> reference, std::span<const float> actual, int m,
                        int64_t n) {
  Tally tally(reference, actual, m, n, DType::kF32);
  for (int row = 0; row < m; ++row) tally.Row(row, tally.ReferenceRow(row), kNoLimit, 0);
  return tally.Finish(kW8A8RelativeRms);
}

int64_t Bf16Distance(uint16_t a, uint16_t b) {
  const bool nan_a = (a & 0x7fff) > 0x7f80, nan_b = (b & 0x7fff) > 0x7f80;
  if (nan_a || nan_b) return nan_a && nan_b ? 0 : kNoDistance;
  return std::abs(Ordinal(a, 0x8000) - Ordinal(b, 0x8000));
}

int64_t F32Distance(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : kNoDistance;
  return std::abs(Ordinal(std::bit_cast<uint32_t>(a), 0x80000000u) -
                  Ordinal(std::bit_cast<uint32_t>(b), 0x80000000u));
}

}  // namespace fulcrum::numerics
