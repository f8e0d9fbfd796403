// The choice of an arm, as pure functions over a ladder table. Rules of the table's rows are
// arm.h's, the meaning of a lever's value is levers.cc's.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/ladder/ladder.h"

#include <algorithm>
#include <array>

namespace fulcrum {
namespace {

// FASTEST runs a decode batch of at most this many rows on an exact arm: so few rows are bound by
// the weight traffic on every rung, and the exact rung needs no fragment padding.
constexpr int kExactFirstRows = 4;

constexpr std::array<std::string_view, 8> kDeclineNames = {"runs", "below", "format", "step",
                                                           "rows", "lever", "class",  "capability"};

bool Opens(const Arm& arm, const LadderQuery& query, const LeverSet& levers, int m) {
  const bool is_faster = (query.device_caps & kCapFasterArms) != 0 && m <= arm.gate.faster_rows;
  return arm.gate.Open(levers, query.family, is_faster);
}

bool Capable(const Arm& arm, const LadderQuery& query) {
  return (arm.needs & ~query.device_caps) == 0;
}

bool ForStep(const Arm& arm, const LadderQuery& query) {
  return arm.format == query.format && (query.step == Step::kDecode ? arm.decode : arm.prefill);
}

// Open and runnable for the query, at some M.
bool Usable(const Arm& arm, const LadderQuery& query, const LeverSet& levers) {
  return ForStep(arm, query) && Capable(arm, query) && Opens(arm, query, levers, arm.m_min);
}

// Whether the usable arms of one class together serve every M of the step.
bool Covers(std::span<const Arm> ladder, const LadderQuery& query, const LeverSet& levers,
            NumericsClass numerics) {
  const int last = query.step == Step::kDecode ? kMaxDecodeRows : kAnyRows;
  int next = 1;  // every M below it is served
  for (bool grown = true; grown && next <= last;) {
    grown = false;
    for (const Arm& arm : ladder) {
      if (arm.numerics != numerics || arm.m_min > next || arm.m_max < next) continue;
      if (!Usable(arm, query, levers)) continue;
      next = arm.m_max + 1;
      grown = true;
    }
  }
  return next > last;
}

// The classes step 2 looks at for this M: `allowed`, narrowed to exact where FASTEST prefers it and
// an exact arm can serve.
ClassSet ClassesAt(std::span<const Arm> ladder, const LadderQuery& query, ClassSet allowed,
                   const LeverSet& levers, int m) {
  const bool prefer_exact = query.policy == Policy::kFastest && query.step == Step::kDecode &&
                            m <= kExactFirstRows && allowed.has(NumericsClass::kExact);
  if (!prefer_exact) return allowed;
  for (const Arm& arm : ladder) {
    if (arm.numerics == NumericsClass::kExact && arm.Serves(query.format, query.step, m) &&
        Usable(arm, query, levers)) {
      ClassSet exact;
      exact.add(NumericsClass::kExact);
      return exact;
    }
  }
  return allowed;
}

// Why the arm cannot run, or kRuns when it can. A missing capability is told before a class: it is
// why the class was not allowed.
Decline Verdict(const Arm& arm, const LadderQuery& query, ClassSet classes, const LeverSet& levers,
                int m) {
  if (arm.format != query.format) return Decline::kFormat;
  if (!ForStep(arm, query)) return Decline::kStep;
  if (m < arm.m_min || m > arm.m_max) return Decline::kRows;
  if (!Opens(arm, query, levers, m)) return Decline::kLever;
  if (!Capable(arm, query)) return Decline::kCapability;
  if (!classes.has(arm.numerics)) return Decline::kClass;
  return Decline::kRuns;
}

}  // namespace

std::string_view Name(Decline reason) { return kDeclineNames[static_cast<size_t>(reason)]; }

ClassSet AllowedClasses(std::span<const Arm> ladder, const LadderQuery& query,
                        const LeverSet& levers) {
  ClassSet classes;
  switch (query.policy) {
    case Policy::kExact:
      break;
    case Policy::kBatchInvariant:
      for (const Arm& arm : ladder) {
        // w8a8 is an approximation a caller must ask for: only FASTEST does.
        if (arm.numerics == NumericsClass::kW8A8 || !Usable(arm, query, levers)) continue;
        if (!Covers(ladder, query, levers, arm.numerics)) continue;
        classes.add(arm.numerics);
        return classes;
      }
      break;
    case Policy::kFastest:
      for (const Arm& arm : ladder) {
        if (Usable(arm, query, levers)) classes.add(arm.numerics);
      }
      break;
  }
  classes.add(NumericsClass::kExact);
  return classes;
}

const Arm* PickArm(std::span<const Arm> ladder, const LadderQuery& query, ClassSet allowed,
                   const LeverSet& levers, int m) {
  const ClassSet classes = ClassesAt(ladder, query, allowed, levers, m);
  for (const Arm& arm : ladder) {
    if (Verdict(arm, query, classes, levers, m) == Decline::kRuns) return &arm;
  }
  return nullptr;
}

std::vector<RungVerdict> Explain(std::span<const Arm> ladder, const LadderQuery& query,
                                 const LeverSet& levers, int m) {
  const ClassSet classes =
      ClassesAt(ladder, query, AllowedClasses(ladder, query, levers), levers, m);
  std::vector<RungVerdict> rungs;
  bool found = false;
  for (const Arm& arm : ladder) {
    if (arm.format != query.format) continue;
    Decline verdict = Verdict(arm, query, classes, levers, m);
    if (verdict == Decline::kRuns && found) verdict = Decline::kBelow;
    found |= verdict == Decline::kRuns;
    rungs.push_back({&arm, verdict});
  }
  return rungs;
}

const Arm* AskedButDeclined(std::span<const Arm> ladder, const LadderQuery& query,
                            const LeverSet& levers, int m) {
  // What a device that can do everything would have run is what the levers asked for.
  // An arm that is only not faster here was not asked for.
  LadderQuery able = query;
  able.device_caps = ~uint32_t{0} & ~kCapFasterArms;
  able.device_caps |= query.device_caps & kCapFasterArms;
  const Arm* asked = PickArm(ladder, able, AllowedClasses(ladder, able, levers), levers, m);
  if (asked == nullptr || asked->gate.lever == Lever::kAlwaysOpen || Capable(*asked, query)) {
    return nullptr;
  }
  return asked;
}

std::vector<int> Pieces(const Arm& arm, int m) {
  std::vector<int> pieces;
  for (int left = m; left > 0; left -= pieces.back()) {
    pieces.push_back(std::min(arm.rows_per_launch, left));
  }
  return pieces;
}

}  // namespace fulcrum
