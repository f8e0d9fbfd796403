// See ab_report.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/ab_report.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/table.h"

namespace fulcrum::cli {
namespace {

struct Series {
  std::vector<double> wall, kernel;
};

Series Of(const AbSide& side, const Phase* phase) {
  Series out;
  for (const StepSample& sample : side.samples) {
    const StepTimes& times = phase == nullptr ? sample.whole : sample.of(*phase);
    out.wall.push_back(times.wall);
    out.kernel.push_back(times.kernel);
  }
  return out;
}

void Fill(AbRow& row, const Series& a, const Series& b) {
  row.a = Quantile(a.wall, 0.5);
  row.b = Quantile(b.wall, 0.5);
  row.wall = PairedChange(a.wall, b.wall);
  row.kernel = PairedChange(a.kernel, b.kernel);
}

std::string Percent(double change) { return absl::StrFormat("%+.2f %%", change * 100); }
std::string Interval(const Change& change) {
  return absl::StrFormat("%+.2f .. %+.2f", change.low * 100, change.high * 100);
}

std::string Reading(const AbRow& row) {
  static constexpr const char* kWords[] = {"faster", "not told apart", "slower"};
  const std::string word = kWords[row.wall.Sign() + 1];
  return row.same_arms ? absl::StrCat(word, " (the same arms ran: A/A)") : word;
}

Json ToJson(const Change& change) {
  return {{"median", change.median}, {"low", change.low}, {"high", change.high}};
}

}  // namespace

std::vector<AbRow> CompareSides(const std::vector<DecodeCall>& calls, const AbSide& a,
                                const AbSide& b) {
  std::vector<AbRow> rows;
  bool all_same = true;
  for (const Phase phase : PhasesOf(calls)) {
    const StepSample &last_a = a.samples.back(), &last_b = b.samples.back();
    AbRow row;
    row.phase = std::string(Name(phase));
    row.tiers_a = TiersOf(calls, last_a, phase);
    row.tiers_b = TiersOf(calls, last_b, phase);
    row.same_arms = SameArms(calls, last_a, last_b, phase);
    all_same &= row.same_arms;
    Fill(row, Of(a, &phase), Of(b, &phase));
    rows.push_back(std::move(row));
  }
  AbRow whole;
  whole.phase = "step";
  whole.same_arms = all_same;
  Fill(whole, Of(a, nullptr), Of(b, nullptr));
  rows.push_back(std::move(whole));
  return rows;
}

void PrintComparison(std::ostream& out, const std::string& title,
                     const std::vector<DecodeCall>& calls, const AbSide& a, const AbSide& b) {
  out << "\n" << title << b.setting.name << " against " << a.setting.name << "\n";
  Table table(
      {"PHASE", "A ms", "B ms", "CHANGE", "INTERVAL %", "KERNEL", "INTERVAL %", "TIER", "READING"});
  for (const AbRow& row : CompareSides(calls, a, b)) {
    table.Row(
        {row.phase, absl::StrFormat("%.3f", row.a * 1e3), absl::StrFormat("%.3f", row.b * 1e3),
         Percent(row.wall.median), Interval(row.wall), Percent(row.kernel.median),
         Interval(row.kernel),
         row.tiers_a == row.tiers_b ? row.tiers_a : absl::StrCat(row.tiers_a, " -> ", row.tiers_b),
         Reading(row)});
  }
  table.Print(out);
}

Json ComparisonJson(const std::vector<DecodeCall>& calls, const AbSide& a, const AbSide& b) {
  Json phases;
  for (const AbRow& row : CompareSides(calls, a, b)) {
    phases[row.phase] = {{"tiers_a", row.tiers_a},
                         {"tiers_b", row.tiers_b},
                         {"same_arms", row.same_arms},
                         {"a_seconds", row.a},
                         {"b_seconds", row.b},
                         {"change", ToJson(row.wall)},
                         {"kernel_change", ToJson(row.kernel)}};
  }
  return {{"a", a.setting.name}, {"b", b.setting.name}, {"phases", std::move(phases)}};
}

}  // namespace fulcrum::cli
