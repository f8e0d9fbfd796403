// The lever table, and the text form of lever values. The table is the only place that knows a
// lever's name, choices, bounds and default; whether a live change is allowed is lever_store's.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/ladder/levers.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace fulcrum {
namespace {

constexpr std::string_view kM16TcChoices[] = {"off", "one_pass", "m16", "m16_n64"};
constexpr std::string_view kOffOn[] = {"off", "on"};
constexpr std::string_view kOffOnLibrary[] = {"off", "on", "library"};
constexpr std::string_view kOffAutoOn[] = {"off", "auto", "on"};
static_assert(kM16TcChoices[kM16TcOnePass] == "one_pass" && kM16TcChoices[kM16TcM16] == "m16" &&
              kM16TcChoices[kM16TcM16N64] == "m16_n64");
static_assert(kOffOn[kQ2ImmaOn] == "on");
static_assert(kOffOnLibrary[kW8A8PrefillOn] == "on" &&
              kOffOnLibrary[kW8A8PrefillLibrary] == "library");
static_assert(kOffAutoOn[kQ2WarpRowsAuto] == "auto" && kOffAutoOn[kQ2WarpRowsOn] == "on");

constexpr LeverInfo kTable[] = {
    {.lever = Lever::kM16Tc,
     .name = "m16_tc",
     .kind = LeverKind::kFamilyMap,
     .choices = kM16TcChoices,
     .default_choice_when_bare = "one_pass",
     .gates = "w8a16_gemm_*, dense_gemm_m16_bf16; on CPU the blockfold arms",
     .doc = "Opens the tensor-core (GPU) or block-fold (CPU) arms for a projection family.",
     .changes_bits = true},
    {.lever = Lever::kW8A8Prefill,
     .name = "w8a8_prefill",
     .kind = LeverKind::kFamilyMap,
     .choices = kOffOnLibrary,
     .default_choice_when_bare = "on",
     .gates = "w8a8_blockscaled, w8a8_cublaslt",
     .doc = "Quantises prefill activations to 8 bits for callers under the policy FASTEST; library "
            "lets cuBLASLt multiply them, and bits may then depend on who shares the batch.",
     .changes_bits = true},
    {.lever = Lever::kQ2WarpRows,
     .name = "q2_warp_rows",
     .kind = LeverKind::kChoice,
     .choices = kOffAutoOn,
     .default_number = kQ2WarpRowsAuto,
     .gates = "q2_0_warp_rows",
     .doc = "Four rows a warp for Q2_0 decode of 1 to 4 rows; auto is where it measured faster."},
    {.lever = Lever::kQ2Imma,
     .name = "q2_imma",
     .kind = LeverKind::kChoice,
     .choices = kOffOn,
     .default_number = kQ2ImmaOn,
     .gates = "q2_0_imma",
     .doc = "Integer tensor cores for Q2_0, one pass over the weights for 32 rows; the bits stay "
            "the same."},
    {.lever = Lever::kCoalesceWindow,
     .name = "coalesce_window_us",
     .kind = LeverKind::kNumber,
     .default_number = 0,
     .min = 0,
     .max = 100000,
     .whole = true,
     .gates = "",
     .doc = "Microseconds a batch may wait for company although a launch slot is free."},
    {.lever = Lever::kMaxBatchRows,
     .name = "max_batch_rows",
     .kind = LeverKind::kNumber,
     .default_number = kMaxDecodeRows,
     .min = 1,
     .max = kMaxDecodeRows,
     .whole = true,
     .gates = "",
     .doc = "Rows at which a decode batch closes; a larger single call still runs, alone."},
    {.lever = Lever::kAuditRate,
     .name = "audit_rate",
     .kind = LeverKind::kNumber,
     .default_number = 0.01,
     .min = 0,
     .max = 1,
     .gates = "",
     .doc = "Share of batches of which a few outputs are recomputed on the CPU and compared."},
    {.lever = Lever::kShadowRate,
     .name = "shadow_rate",
     .kind = LeverKind::kNumber,
     .default_number = 0.01,
     .min = 0,
     .max = 1,
     .gates = "",
     .doc =
         "Share of batches of a non-exact arm of which 128 columns are compared with class exact."},
};
static_assert(std::size(kTable) == kLeverCount);
static_assert([] {
  for (size_t i = 0; i < kLeverCount; ++i) {
    if (kTable[i].lever != static_cast<Lever>(i)) return false;
  }
  return true;
}());

// absl::string_view and std::string_view are two types in some builds of Abseil.
absl::string_view Absl(std::string_view s) { return {s.data(), s.size()}; }
std::string_view Std(absl::string_view s) { return {s.data(), s.size()}; }

template <class Strings>
std::string OneOf(const Strings& names) {
  return absl::StrJoin(names, ", ",
                       [](std::string* out, std::string_view name) { out->append(name); });
}

std::string AllFamilyNames() {
  std::vector<std::string_view> names = {"all"};
  for (Family f : kAllFamilies) names.push_back(Name(f));
  return OneOf(names);
}

std::optional<int> FindChoice(const LeverInfo& info, std::string_view name) {
  for (size_t i = 0; i < info.choices.size(); ++i) {
    if (info.choices[i] == name) return static_cast<int>(i);
  }
  return std::nullopt;
}

absl::Status BadChoice(const LeverInfo& info, std::string_view token) {
  return absl::InvalidArgumentError(absl::StrFormat("lever %s: no choice '%s'; expected one of: %s",
                                                    info.name, token, OneOf(info.choices)));
}

using FamilyChoices = std::array<uint8_t, kAllFamilies.size()>;

// Entries "family[:choice]" in any order; "all" may only come first, so that what follows it can
// only make an exception from it.
absl::StatusOr<FamilyChoices> ParseFamilyMap(const LeverInfo& info, std::string_view text) {
  FamilyChoices result{};
  if (text == info.choices[0]) return result;
  std::array<bool, kAllFamilies.size()> seen{};
  bool first = true;
  for (absl::string_view piece : absl::StrSplit(Absl(text), ',')) {
    const absl::string_view entry = absl::StripAsciiWhitespace(piece);
    const size_t colon = entry.find(':');
    const std::string_view family_name = Std(absl::StripAsciiWhitespace(entry.substr(0, colon)));
    std::string_view choice_name = info.default_choice_when_bare;
    if (colon != absl::string_view::npos) {
      choice_name = Std(absl::StripAsciiWhitespace(entry.substr(colon + 1)));
    }
    const std::optional<Family> family = ParseFamily(family_name);
    const bool all = family_name == "all";
    if (!family.has_value() && !all) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "lever %s: no projection family '%s'; expected '%s' or entries FAMILY[:CHOICE] with "
          "FAMILY one of: %s",
          info.name, family_name, info.choices[0], AllFamilyNames()));
    }
    const std::optional<int> choice = FindChoice(info, choice_name);
    if (!choice.has_value()) return BadChoice(info, choice_name);
    if (all) {
      if (!first) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "lever %s: 'all' after other entries would undo them; put it first", info.name));
      }
      result.fill(static_cast<uint8_t>(*choice));
    } else {
      const size_t index = static_cast<size_t>(*family);
      if (seen[index]) {
        return absl::InvalidArgumentError(
            absl::StrFormat("lever %s: family '%s' is named twice", info.name, family_name));
      }
      seen[index] = true;
      result[index] = static_cast<uint8_t>(*choice);
    }
    first = false;
  }
  return result;
}

absl::StatusOr<double> ParseNumber(const LeverInfo& info, std::string_view text) {
  double value = 0;
  // !(a <= v && v <= b) rather than v < a || v > b: a NaN must be refused too.
  if (!absl::SimpleAtod(Absl(text), &value) || !(value >= info.min && value <= info.max) ||
      (info.whole && value != std::floor(value))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("lever %s: '%s' is not a %snumber from %g to %g", info.name, text,
                        info.whole ? "whole " : "", info.min, info.max));
  }
  return value + 0.0;  // -0 becomes 0, so equal values print equally
}

}  // namespace

std::span<const LeverInfo> LeverTable() { return kTable; }

const LeverInfo& Info(Lever lever) { return kTable[static_cast<size_t>(lever)]; }

const LeverInfo* FindLever(std::string_view name) {
  for (const LeverInfo& info : kTable) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

LeverSet::LeverSet() {
  for (const LeverInfo& info : kTable) set_number(info.lever, info.default_number);
}

absl::Status LeverSet::Set(std::string_view lever, std::string_view value) {
  const LeverInfo* info = FindLever(lever);
  if (info == nullptr) {
    std::vector<std::string_view> names;
    for (const LeverInfo& row : kTable) names.push_back(row.name);
    return absl::InvalidArgumentError(
        absl::StrFormat("no lever '%s'; levers are: %s", lever, OneOf(names)));
  }
  const std::string_view text = Std(absl::StripAsciiWhitespace(Absl(value)));
  switch (info->kind) {
    case LeverKind::kFamilyMap: {
      const absl::StatusOr<FamilyChoices> map = ParseFamilyMap(*info, text);
      if (!map.ok()) return map.status();
      maps_[static_cast<size_t>(info->lever)] = *map;
      return absl::OkStatus();
    }
    case LeverKind::kChoice: {
      const std::optional<int> choice = FindChoice(*info, text);
      if (!choice.has_value()) return BadChoice(*info, text);
      set_number(info->lever, *choice);
      return absl::OkStatus();
    }
    case LeverKind::kNumber: {
      const absl::StatusOr<double> number = ParseNumber(*info, text);
      if (!number.ok()) return number.status();
      set_number(info->lever, *number);
      return absl::OkStatus();
    }
  }
  return absl::InternalError("lever kind outside the table");
}

std::string LeverSet::Print(Lever lever) const {
  const LeverInfo& info = Info(lever);
  switch (info.kind) {
    case LeverKind::kFamilyMap: {
      const auto& map = maps_[static_cast<size_t>(lever)];
      bool uniform = true;
      for (uint8_t choice : map) uniform &= choice == map[0];
      if (uniform && map[0] == 0) return std::string(info.choices[0]);
      if (uniform) return absl::StrFormat("all:%s", info.choices[map[0]]);
      std::string text;
      for (Family family : kAllFamilies) {
        const uint8_t choice = map[static_cast<size_t>(family)];
        if (choice == 0) continue;
        absl::StrAppendFormat(&text, "%s%s:%s", text.empty() ? "" : ",", Name(family),
                              info.choices[choice]);
      }
      return text;
    }
    case LeverKind::kChoice:
      return std::string(info.choices[static_cast<size_t>(choice(lever))]);
    case LeverKind::kNumber: {
      if (info.whole) return absl::StrCat(static_cast<int64_t>(number(lever)));
      char buffer[32];  // the shortest text that reads back as the same double
      const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number(lever));
      return std::string(buffer, end.ptr);
    }
  }
  return std::string();
}

bool Gate::Open(const LeverSet& levers, Family family, bool is_faster) const {
  if (lever == Lever::kAlwaysOpen) return true;
  const int choice = Info(lever).kind == LeverKind::kFamilyMap ? levers.choice(lever, family)
                                                               : levers.choice(lever);
  const uint32_t open = is_faster ? choices : choices & ~where_faster;
  return (open >> choice & 1) != 0;
}

}  // namespace fulcrum
