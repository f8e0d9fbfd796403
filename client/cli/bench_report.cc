// Derived figures and their two forms.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench_report.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace fulcrum::cli {
namespace {

double Ratio(double a, double b) { return b == 0 ? 0 : a / b; }

Json Counts(const std::map<std::string, int64_t>& counts) {
  Json json = Json::object();
  for (const auto& [name, count] : counts) json[name] = count;
  return json;
}

std::string Words(const std::map<std::string, int64_t>& counts) {
  return absl::StrJoin(counts, ", ", absl::PairFormatter(" "));
}

}  // namespace

Json ToJson(const BenchReport& report) {
  const BenchOptions& options = report.options;
  const BenchResult& result = report.result;
  const Tally& tally = result.tally;
  const auto calls = static_cast<double>(tally.calls);
  const double calls_per_s = Ratio(static_cast<double>(tally.calls_in_window), result.seconds);
  Json stages = Json::object();
  for (size_t i = 0; i < kStageNames.size(); ++i) {
    stages[kStageNames[i]] = Ratio(tally.stage_seconds[i], calls) * 1e6;
  }
  const auto us = [&](double quantile) { return tally.latency.Percentile(quantile) / 1e3; };
  return {{"calls_per_s", calls_per_s},
          {"rows_per_s", calls_per_s * static_cast<double>(options.rows)},
          {"p50_us", us(0.5)},
          {"p90_us", us(0.9)},
          {"p99_us", us(0.99)},
          {"p999_us", us(0.999)},
          {"max_us", static_cast<double>(tally.latency.max()) / 1e3},
          {"mean_us", tally.latency.mean() / 1e3},
          {"mean_batch_rows", Ratio(static_cast<double>(tally.rows), tally.launches)},
          {"row_weighted_batch_rows", Ratio(tally.batch_by_rows, static_cast<double>(tally.rows))},
          {"errors", tally.error_count},
          {"mismatches", tally.mismatches},
          {"calls", tally.calls},
          {"verified", tally.verified},
          {"unverified", tally.unverified},
          {"oracle", report.oracle},
          {"oracle_elements", report.oracle_elements},
          {"errors_by_code", Counts(tally.errors)},
          {"first_error", tally.first_error},
          {"stages_us", std::move(stages)},
          {"arms", Counts(tally.arms)},
          {"classes", Counts(tally.classes)},
          {"close_reasons", Counts(tally.close_reasons)},
          {"lever_epochs", tally.epochs},
          {"target", report.target},
          {"shards", options.shards},
          {"loop", options.rate > 0 ? "open" : "closed"},
          {"clients", options.clients},
          {"rows", options.rows},
          {"seconds", result.seconds},
          {"rate", options.rate},
          {"arrivals", options.rate > 0 ? options.arrivals : ""},
          {"latest_send_us", result.latest_send_s * 1e6},
          {"policy", options.policy},
          {"channels", options.channels},
          {"stream", options.stream},
          {"verify_sample", options.verify_sample},
          {"warmup",
           {{"seconds", result.warmup_seconds},
            {"calls", result.warmup_calls},
            {"faults_per_call", result.warmup_faults_per_call}}},
          {"client",
           {{"cpu", report.machine.cpu},
            {"cpus", report.machine.cpus},
            {"kernel", report.machine.kernel},
            {"load_at_start", report.machine.load},
            {"cpu_seconds", result.cpu_seconds},
            {"faults_per_call", result.faults_per_call}}}};
}

void PrintText(std::ostream& out, const BenchReport& report) {
  const Json json = ToJson(report);
  const Tally& tally = report.result.tally;
  const auto number = [&](const char* key) { return json[key].get<double>(); };
  out << absl::StrFormat("%.0f calls/s, %.0f rows/s over %.1f s (%s loop, %d clients, M = %d)\n",
                         number("calls_per_s"), number("rows_per_s"), report.result.seconds,
                         json["loop"].get<std::string>(), report.options.clients,
                         report.options.rows);
  out << absl::StrFormat(
      "latency us: p50 %.0f, p90 %.0f, p99 %.0f, p99.9 %.0f, max %.0f, mean %.0f\n",
      number("p50_us"), number("p90_us"), number("p99_us"), number("p999_us"), number("max_us"),
      number("mean_us"));
  out << absl::StrFormat("rows a launch: mean %.2f, as a row sees it %.2f\nmean stages us:",
                         number("mean_batch_rows"), number("row_weighted_batch_rows"));
  for (const char* const stage : kStageNames) {
    out << absl::StrFormat(" %s %.0f", stage, json["stages_us"][stage].get<double>());
  }
  out << "\narms: " << Words(tally.arms) << "; batches closed: " << Words(tally.close_reasons)
      << "; lever epochs: " << absl::StrJoin(tally.epochs, ", ") << "\n";
  if (report.options.rate > 0) {
    out << absl::StrFormat("sends were late by at most %.0f us\n", number("latest_send_us"));
  }
  out << "replies compared: " << tally.verified << ", without reference: " << tally.unverified
      << ", MISMATCHES: " << tally.mismatches << "; oracle: " << report.oracle << "\n";
  out << "errors: " << tally.error_count
      << (tally.errors.empty() ? "" : " (" + Words(tally.errors) + ")") << "\n";
  if (!tally.first_error.empty()) out << "first error: " << tally.first_error << "\n";
  out << absl::StrFormat("warm-up %.1f s (%d calls), page faults a call %.2f, client %s x %d\n",
                         report.result.warmup_seconds, report.result.warmup_calls,
                         report.result.faults_per_call, report.machine.cpu, report.machine.cpus);
}

}  // namespace fulcrum::cli
