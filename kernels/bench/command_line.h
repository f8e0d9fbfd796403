// Command lines of the benchmarks: options as --name and --name=value.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fulcrum::bench {

using Shape = std::pair<int64_t, int64_t>;  // N, K

// Each call below declares an option. Defaults are what the targets hold before Parse; a list that
// is given replaces the default.
class CommandLine {
 public:
  // program: its name. The first comment of its source documents the options.
  explicit CommandLine(std::string_view program) : program_(program) {}

  void Flag(std::string_view name, bool* to);
  void Text(std::string_view name, std::string* to);
  void Number(std::string_view name, int* to, int least = 1);
  void Numbers(std::string_view name, std::vector<int>* to);      // N[,N...], each at least 1
  void Numbers(std::string_view name, std::vector<int64_t>* to);  // likewise
  void Shapes(std::string_view name, std::vector<Shape>* to);     // NxK[,NxK...]
  // set(value) returns whether it takes the value.
  void Value(std::string_view name, std::function<bool(const std::string&)> set);

  // False after a message to stderr that names the first argument that is not an option, or whose
  // value its option does not take.
  bool Parse(int argc, char** argv) const;

 private:
  struct Option {
    std::string name;
    std::function<bool(const std::string&)> set;
  };
  std::string program_;
  std::vector<Option> options_;
};

}  // namespace fulcrum::bench
