// Column widths and alignment.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/table.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace fulcrum::cli {
namespace {

bool IsNumber(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789.-+e%") == std::string::npos;
}

}  // namespace

void Table::Print(std::ostream& out) const {
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (size_t r = 0; r < rows_.size(); ++r) {
    widths.resize(std::max(widths.size(), rows_[r].size()), 0);
    right.resize(widths.size(), rows_.size() > 1);
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      widths[c] = std::max(widths[c], rows_[r][c].size());
      if (r > 0 && !rows_[r][c].empty() && !IsNumber(rows_[r][c])) right[c] = false;
    }
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      if (c > 0) line += "  ";
      const std::string pad(widths[c] - row[c].size(), ' ');
      line += right[c] ? pad + row[c] : row[c] + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }
}

std::string HumanBytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, bytes, kUnits[unit]);
}

}  // namespace fulcrum::cli
