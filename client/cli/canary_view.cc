// See canary_view.h.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/canary_view.h"

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/json.h"
#include "client/cli/lever_messages.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cli/text.h"

namespace fulcrum::cli {
namespace {

// What the node takes, said before it is asked: a limit that is no number would be none.
constexpr double kLeastRatio = 1, kMostRatio = 100;

constexpr size_t kHashDigits = 12;

constexpr char kGuards[] =
    "p50=RATIO, p99=RATIO (1 to 100, or off), min_samples=N, min_clients=N, shadow_failures=N, "
    "failed_launches=N, declines=N or heartbeat=DURATION";

absl::Status FillGuard(const std::string& text, v1::CanaryGuards* guards) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("--guard: got \"", text, "\"; expected ", kGuards));
  };
  if (name == "heartbeat") {
    double seconds = 0;
    if (absl::Status s = ParseSeconds("--guard heartbeat", value, &seconds); !s.ok()) return s;
    guards->set_heartbeat_seconds(seconds);
    return absl::OkStatus();
  }
  if (name == "p50" || name == "p99") {
    double ratio = -1;
    if (value != "off" &&
        (!absl::SimpleAtod(value, &ratio) || !(ratio >= kLeastRatio && ratio <= kMostRatio))) {
      return bad();
    }
    name == "p50" ? guards->set_kernel_p50(ratio) : guards->set_kernel_p99(ratio);
    return absl::OkStatus();
  }
  int64_t count = 0;
  if (!absl::SimpleAtoi(value, &count) || count < 0) return bad();
  if (name == "min_samples" && count > 0) {
    guards->set_min_samples(count);
  } else if (name == "min_clients" && count > 0) {
    guards->set_min_clients(count);
  } else if (name == "shadow_failures") {
    guards->set_max_shadow_failures(count);
  } else if (name == "failed_launches") {
    guards->set_max_failed_launches(count);
  } else if (name == "declines") {
    guards->set_max_declines(count);
  } else {
    return bad();
  }
  return absl::OkStatus();
}

std::string Microseconds(double seconds) {
  return seconds == 0 ? "-" : absl::StrFormat("%.1f", seconds * 1e6);
}
std::string Ratio(double canary, double control) {
  return canary == 0 || control == 0 ? "-" : absl::StrFormat("%.3f", canary / control);
}

void PrintSide(std::ostream& out, const char* name, const v1::CanarySide& side) {
  out << absl::StrFormat(
      "%-8s %d batches (%d comparable, of %d clients), %d rows; failed %d, declined %d; shadow %d "
      "passed, %d failed, %d dropped\n",
      name, side.batches(), side.comparable(), side.clients(), side.rows(), side.failed_launches(),
      side.declined(), side.shadow_passed(), side.shadow_failed(), side.shadow_dropped());
}

std::string Percent(double share) { return absl::StrFormat("%.3g%%", share * 100); }

std::string Counted(int64_t count, const std::string& what, bool more) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s", more ? " or more" : "");
}

// What a share of nothing or of everything means.
std::string WhatItGets(const v1::UnitTraffic& traffic, v1::CanaryUnit unit) {
  if (unit == v1::CANARY_UNIT_BATCH) {
    return traffic.expected_share() > 0 ? ", of calls under FASTEST"
                                        : ": no call under FASTEST was seen, and others are not "
                                          "divided by batch";
  }
  std::string of = absl::StrCat(", ", traffic.canary_units(), " of ",
                                Counted(traffic.units(), Word(unit), traffic.more()));
  if (traffic.expected_share() <= 0) return of + ": the canary gets none of them";
  if (traffic.expected_share() >= 1) return of + ": there is no control to compare with";
  return of;
}

// Evidence of weights or arms that are no more.
void PrintRestarts(std::ostream& out, const v1::Canary& canary) {
  const int64_t older = canary.restart_count() - canary.restarts_size();
  if (older > 0) out << "evidence began again " << older << " times more before these:\n";
  for (const v1::CanaryRestart& restart : canary.restarts()) {
    out << "evidence began again " << TimeText(restart.time()) << ": ";
    if (restart.shard().empty()) {
      out << "a lever that chooses arms was set (epoch " << restart.lever_epoch() << ")";
    } else {
      out << absl::StrFormat(
          "%s version %d (hash %s) was replaced by version %d (hash %s)", OneLine(restart.shard()),
          restart.from_version(), OneLine(restart.from_hash().substr(0, kHashDigits)),
          restart.to_version(), OneLine(restart.to_hash().substr(0, kHashDigits)));
    }
    out << absl::StrFormat("; put aside: %d canary and %d control batches, %d shadow checks\n",
                           restart.canary_batches(), restart.control_batches(),
                           restart.shadow_passed());
  }
}

void PrintLevers(std::ostream& out, const v1::Canary& canary) {
  for (int i = 0; i < canary.control_size(); ++i) {
    const v1::LeverAssignment& control = canary.control(i);
    for (const v1::LeverAssignment& candidate : canary.candidate()) {
      if (candidate.name() != control.name()) continue;
      out << "  " << control.name() << ": control " << control.value() << ", canary "
          << candidate.value() << "\n";
    }
  }
}

}  // namespace

absl::Status ParseSeconds(const std::string& option, const std::string& text, double* seconds) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration <= absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": got \"", text, "\"; expected a duration: 30s, 10m, 1h30m"));
  }
  *seconds = absl::ToDoubleSeconds(duration);
  return absl::OkStatus();
}

void CanaryOptions::Declare(Options& options) {
  options.Add("--canary", &share_, "Only for this share of traffic, under guards: 5% or 0.05");
  options.Choice(
      "--by", &by_, {"client", "connection", "shard", "batch"},
      "Canary: what is assigned to a side (default client; connection: connections of a client may "
      "differ; batch: calls under FASTEST alone)");
  options.Flag("--allow-uneven", &allow_uneven_,
               "Canary: although one client (connection, shard) alone may bring more than five "
               "times the share of the traffic");
  options.Add("--guard", &guards_, std::string("Canary, repeatable: ") + kGuards);
  options.Add("--promote-after", &promote_after_,
              "Canary: promotes itself after so long without a breach: 10m");
  options.Add("--hold-after", &hold_after_,
              "Canary: waits for promote or abort after so long without a breach (default 10m)");
}

absl::Status CanaryOptions::Check() const {
  if (asked()) return absl::OkStatus();
  if (by_.empty() && guards_.empty() && promote_after_.empty() && hold_after_.empty() &&
      !allow_uneven_) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "levers set: --by, --allow-uneven, --guard, --promote-after and --hold-after need --canary "
      "SHARE");
}

absl::Status CanaryOptions::Fill(v1::StartCanaryRequest* request) const {
  const bool percent = !share_.empty() && share_.back() == '%';
  double share = 0;
  const bool number =
      absl::SimpleAtod(percent ? share_.substr(0, share_.size() - 1) : share_, &share);
  if (percent) share /= 100;
  if (!number || !(share > 0 && share < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--canary: got \"", share_,
                     "\"; expected a share of more than 0 and less than 100%: 5% or 0.05"));
  }
  request->set_share(share);
  request->set_unit(by_ == "batch"        ? v1::CANARY_UNIT_BATCH
                    : by_ == "shard"      ? v1::CANARY_UNIT_SHARD
                    : by_ == "connection" ? v1::CANARY_UNIT_CONNECTION
                                          : v1::CANARY_UNIT_CLIENT);
  request->set_allow_uneven(allow_uneven_);
  if (!promote_after_.empty() && !hold_after_.empty()) {
    return absl::InvalidArgumentError(
        "levers set: --promote-after and --hold-after exclude each "
        "other");
  }
  const std::string& after = promote_after_.empty() ? hold_after_ : promote_after_;
  if (!after.empty()) {
    double seconds = 0;
    const char* const option = promote_after_.empty() ? "--hold-after" : "--promote-after";
    if (absl::Status s = ParseSeconds(option, after, &seconds); !s.ok()) return s;
    request->set_duration_seconds(seconds);
  }
  request->set_on_success(promote_after_.empty() ? v1::CANARY_SUCCESS_HOLD
                                                 : v1::CANARY_SUCCESS_PROMOTE);
  std::set<std::string> named;
  for (const std::string& guard : guards_) {
    // The last of two would count, and nobody would be told of the first.
    const std::string name = guard.substr(0, guard.find('='));
    if (!named.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("--guard: ", name, " is given twice"));
    }
    if (absl::Status s = FillGuard(guard, request->mutable_guards()); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void PrintSeen(std::ostream& out, const v1::UnitTraffic& traffic, v1::CanaryUnit unit) {
  out << "traffic of the last minute: " << Counted(traffic.clients(), "client", traffic.more())
      << ", " << traffic.rows() << " rows";
  if (traffic.largest_share() > 0) {
    out << "; the largest " << Word(unit);
    if (!traffic.largest_unit().empty()) out << " (" << OneLine(traffic.largest_unit()) << ")";
    out << " sent " << Percent(traffic.largest_share());
  }
  out << "\n";
}

void PrintTraffic(std::ostream& out, const v1::Canary& canary) {
  if (!canary.has_traffic()) return;
  const v1::UnitTraffic& traffic = canary.traffic();
  PrintSeen(out, traffic, canary.unit());
  if (traffic.rows() == 0) {
    out << "  the canary's side: not known before there is traffic\n";
    return;
  }
  out << "  the canary's side: " << Percent(traffic.expected_share()) << " of these rows"
      << WhatItGets(traffic, canary.unit()) << "\n";
}

void PrintCanaryPlan(std::ostream& out, const v1::Canary& canary) {
  out << absl::StrFormat("%g%% by %s for %s, then %s\n", canary.share() * 100, Word(canary.unit()),
                         absl::FormatDuration(absl::Seconds(canary.duration_seconds())),
                         Word(canary.on_success()));
  PrintLevers(out, canary);
  PrintTraffic(out, canary);
}

void PrintCanary(std::ostream& out, const v1::Canary& canary) {
  out << absl::StrFormat("%s %s, %g%% by %s, control epoch %d, canary epoch %d\n", canary.name(),
                         Word(canary.state()), canary.share() * 100, Word(canary.unit()),
                         canary.control_epoch(), canary.epoch());
  PrintLevers(out, canary);
  if (Lives(canary)) PrintTraffic(out, canary);
  PrintRestarts(out, canary);
  PrintSide(out, "control", canary.control_side());
  PrintSide(out, "canary", canary.canary_side());
  if (!canary.comparisons().empty()) {
    Table table({"FAMILY", "STEP", "ROWS", "CONTROL", "CANARY", "N CONTROL", "N CANARY",
                 "P50 CONTROL us", "P50 CANARY us", "P50 RATIO", "P99 CONTROL us", "P99 CANARY us",
                 "P99 RATIO", "EVIDENCE"});
    for (const v1::CanaryComparison& row : canary.comparisons()) {
      const bool one = row.rows_first() == row.rows_last();
      table.Row({Word(row.family()), Word(row.step()),
                 one ? absl::StrCat(row.rows_first())
                     : absl::StrCat(row.rows_first(), "-", row.rows_last()),
                 row.control_asked().empty()
                     ? row.control_ran()
                     : absl::StrCat(row.control_ran(), " (asked ", row.control_asked(), ")"),
                 row.canary_ran(), absl::StrCat(row.control_batches()),
                 absl::StrCat(row.canary_batches()), Microseconds(row.control_p50()),
                 Microseconds(row.canary_p50()), Ratio(row.canary_p50(), row.control_p50()),
                 Microseconds(row.control_p99()), Microseconds(row.canary_p99()),
                 Ratio(row.canary_p99(), row.control_p99()),
                 absl::StrFormat("%.2g", std::max(row.p50_evidence(), row.p99_evidence()))});
    }
    table.Print(out);
  }
  out << OneLine(canary.evidence()) << "\n";
}

}  // namespace fulcrum::cli
