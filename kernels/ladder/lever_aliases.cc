// Translation of environment spellings into lever values; the grammar is in the header.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/ladder/lever_aliases.h"

#include <array>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/ladder/levers.h"

namespace fulcrum {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr char kGeneralPrefix[] = "FULCRUM_LEVER_";
constexpr char kUmbrella[] = "FULCRUM_M16_TC";
constexpr char kAttention[] = "FULCRUM_ATTN_M16_TC";
constexpr char kFfn[] = "FULCRUM_FFN_M16_TC";
constexpr char kFfnTile[] = "FULCRUM_FFN_M16_TC_NTILE";
constexpr char kQ2Warp[] = "FULCRUM_Q2_WARP";

struct Armed {
  bool on;
  std::string variable;
};

std::optional<Armed> Read(const Variables& variables, const char* name) {
  const auto it = variables.find(name);
  if (it == variables.end()) return std::nullopt;
  const std::string text = absl::AsciiStrToLower(absl::StripAsciiWhitespace(it->second));
  const bool off = text == "0" || text == "false" || text == "off" || text == "no";
  return Armed{!off, name};
}

// A value that aliases give to one lever.
struct Found {
  LeverSet levers;  // only the lever in question matters
  std::vector<std::string> variables;
};

std::optional<Found> ReadM16Tc(const Variables& variables) {
  const std::optional<Armed> umbrella = Read(variables, kUmbrella);
  std::optional<Armed> attention = Read(variables, kAttention);
  std::optional<Armed> ffn = Read(variables, kFfn);
  if (!attention.has_value()) attention = umbrella;
  if (!ffn.has_value()) ffn = umbrella;
  if (!attention.has_value() && !ffn.has_value()) return std::nullopt;

  Found found;
  const auto arm = [&](Family family, int choice) {
    found.levers.set_choice(Lever::kM16Tc, family, choice);
  };
  if (attention.has_value()) {
    found.variables.push_back(attention->variable);
    if (attention->on) {
      arm(Family::kAttnQkv, kM16TcM16);
      arm(Family::kAttnO, kM16TcM16);
    }
  }
  if (ffn.has_value()) {
    if (found.variables.empty() || found.variables.back() != ffn->variable) {
      found.variables.push_back(ffn->variable);
    }
    if (ffn->on) {
      const auto tile = variables.find(kFfnTile);
      const bool n64 = tile != variables.end() && tile->second == "64";
      if (n64) found.variables.push_back(kFfnTile);
      arm(Family::kFfnGateUp, n64 ? kM16TcM16N64 : kM16TcM16);
      arm(Family::kFfnDown, n64 ? kM16TcM16N64 : kM16TcM16);
    }
  }
  return found;
}

std::optional<Found> ReadQ2Warp(const Variables& variables) {
  const std::optional<Armed> armed = Read(variables, kQ2Warp);
  if (!armed.has_value()) return std::nullopt;
  Found found;
  found.levers.set_number(Lever::kQ2WarpRows, armed->on ? kQ2WarpRowsOn : 0);
  found.variables.push_back(armed->variable);
  return found;
}

}  // namespace

absl::StatusOr<std::vector<AliasedLever>> TranslateAliases(const Variables& variables) {
  std::array<std::optional<Found>, kLeverCount> by_lever;
  by_lever[static_cast<size_t>(Lever::kM16Tc)] = ReadM16Tc(variables);
  by_lever[static_cast<size_t>(Lever::kQ2WarpRows)] = ReadQ2Warp(variables);

  for (auto it = variables.lower_bound(kGeneralPrefix);
       it != variables.end() && it->first.starts_with(kGeneralPrefix); ++it) {
    const auto& [variable, value] = *it;
    const std::string name =
        absl::AsciiStrToLower(variable.substr(std::string_view(kGeneralPrefix).size()));
    Found found;
    if (absl::Status s = found.levers.Set(name, value); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(variable, ": ", s.message()));
    }
    found.variables.push_back(variable);
    std::optional<Found>& slot = by_lever[static_cast<size_t>(FindLever(name)->lever)];
    if (slot.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s and %s both set lever %s; keep one of them", variable,
                          absl::StrJoin(slot->variables, ","), name));
    }
    slot = std::move(found);
  }

  std::vector<AliasedLever> result;
  for (const LeverInfo& info : LeverTable()) {
    const std::optional<Found>& found = by_lever[static_cast<size_t>(info.lever)];
    if (!found.has_value()) continue;
    result.push_back({std::string(info.name), found->levers.Print(info.lever),
                      absl::StrJoin(found->variables, ",")});
  }
  return result;
}

}  // namespace fulcrum
