// One measured cell, and its two forms: a line of a table and a line of JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fulcrum::bench {

struct Yardsticks {
  std::string device = "";
  int threads = 0;
  double read_bytes = 0;  // a second
  double fmas = 0;        // a second; 0 where it was not measured (not the CPU)
};

struct Cell {
  std::string arm = "";
  int64_t n = 0, k = 0;
  int m = 0;
  int copies = 0;                    // weights the launches rotate over
  std::vector<double> seconds = {};  // one a launch
  int64_t bytes = 0;                 // read a launch
};

std::string Header(const Yardsticks& best);
std::string Row(const Cell& cell, const Yardsticks& best);
std::string Json(const Cell& cell, const Yardsticks& best);
double Quantile(std::vector<double> values, double q);

}  // namespace fulcrum::bench
