// Lever values from environment variables, as a pure function of their names and values: who reads
// the environment, and when, is the caller's (main).
//
// FULCRUM_LEVER_<NAME>=VALUE sets any lever (NAME in any case). Beside it the spellings that
// serving stacks already use are understood:
//   FULCRUM_M16_TC            arms m16_tc for attention and FFN, where the family's own variable
//                             is absent
//   FULCRUM_ATTN_M16_TC       arms it for attn_qkv and attn_o
//   FULCRUM_FFN_M16_TC        arms it for ffn_gate_up and ffn_down
//   FULCRUM_FFN_M16_TC_NTILE  exactly "64": an armed FFN uses m16_n64; anything else: m16
//   FULCRUM_Q2_WARP           arms q2_warp_rows
// 0, false, off and no (any case, trimmed) disarm; any other value, the empty one included, arms.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fulcrum {

struct AliasedLever {
  std::string lever;     // its name in the lever table
  std::string value;     // canonical text for LeverSet::Set; replaces the lever's whole value
  std::string variable;  // the variable (or variables, comma-separated) it came from
};

// One entry per lever that the variables name, in table order. Variables that are not lever
// spellings are ignored. INVALID_ARGUMENT, naming the variable, for FULCRUM_LEVER_ with an unknown
// lever or value, and when a lever is set in both spellings.
absl::StatusOr<std::vector<AliasedLever>> TranslateAliases(
    const std::map<std::string, std::string>& variables);

}  // namespace fulcrum
