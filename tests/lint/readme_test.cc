// README's tables of arms and levers are the code's, row for row and in order. Each table is made
// from the code here, so a failure prints what README should say.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/backend_factory.h"
#include "kernels/ladder/levers.h"

namespace fulcrum {
namespace {

// Rows of the table whose first header cell is `head`.
std::vector<std::string> ReadmeTable(const std::string& head) {
  std::ifstream file(std::string(FULCRUM_SOURCE_DIR) + "/README.md");
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| " + head + " |", 0) == 0) {
      inside = true;
    } else if (inside && line.empty()) {
      break;
    } else if (inside && line.rfind("|---", 0) != 0) {
      rows.push_back(line);
    }
  }
  return rows;
}

std::string Cell(std::string_view text) { return std::string(text); }
std::string Code(std::string_view text) { return absl::StrCat("`", std::string(text), "`"); }

std::string ArmRow(const Arm& arm) {
  std::vector<std::string> steps;
  if (arm.decode) steps.push_back("decode");
  if (arm.prefill) steps.push_back("prefill");
  const bool gated = arm.gate.lever != Lever::kAlwaysOpen;
  return absl::StrCat("| ", Code(arm.name), " | ", Cell(Name(arm.format)), " | ",
                      absl::StrJoin(steps, ", "), " | ", Cell(Name(arm.numerics)), " | ",
                      gated ? Code(Info(arm.gate.lever).name) + " " : "", "|");
}

std::string LeverRow(const LeverInfo& info) {
  std::string values;
  if (info.kind == LeverKind::kNumber) {
    values = absl::StrCat(info.min, " to ", info.max);
  } else {
    values = absl::StrJoin(info.choices, ", ",
                           [](std::string* out, std::string_view choice) { out->append(choice); });
    if (info.kind == LeverKind::kFamilyMap) values += " by family";
  }
  return absl::StrCat("| ", Code(info.name), " | ", values, " | ", LeverSet().Print(info.lever),
                      " | ", Cell(info.doc), " |");
}

TEST(Readme, ArmsAreTheCpuLadder) {
  const auto backends = MakeBackends("cpu", {.cpu_threads = 1});
  ASSERT_TRUE(backends.ok()) << backends.status();
  std::vector<std::string> expected;
  for (const Arm& arm : backends->front()->ladder()) expected.push_back(ArmRow(arm));
  ASSERT_FALSE(expected.empty());
  EXPECT_EQ(ReadmeTable("arm"), expected) << absl::StrJoin(expected, "\n");
}

TEST(Readme, LeversAreTheTable) {
  std::vector<std::string> expected;
  for (const LeverInfo& info : LeverTable()) expected.push_back(LeverRow(info));
  ASSERT_FALSE(expected.empty());
  EXPECT_EQ(ReadmeTable("lever"), expected) << absl::StrJoin(expected, "\n");
}

TEST(Arms, EachIsAFileOfItsName) {
  const auto backends = MakeBackends("cpu", {.cpu_threads = 1});
  ASSERT_TRUE(backends.ok()) << backends.status();
  for (const Arm& arm : backends->front()->ladder()) {
    const std::string path =
        absl::StrCat(FULCRUM_SOURCE_DIR, "/kernels/cpu/arms/", Cell(arm.name), ".cc");
    EXPECT_TRUE(std::ifstream(path).good()) << path;
  }
}

}  // namespace
}  // namespace fulcrum
