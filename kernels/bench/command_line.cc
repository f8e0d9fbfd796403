// See command_line.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/command_line.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace fulcrum::bench {
namespace {

template <class Int>
bool ParseNumber(const std::string& text, Int least, Int* number) {
  return absl::SimpleAtoi(text, number) && *number >= least;
}

bool ParseShape(const std::string& text, Shape* shape) {
  const std::vector<std::string> sizes = absl::StrSplit(text, 'x');
  return sizes.size() == 2 && ParseNumber<int64_t>(sizes[0], 1, &shape->first) &&
         ParseNumber<int64_t>(sizes[1], 1, &shape->second);
}

// Comma-separated elements, each read by `parse`.
template <class Element, class Parse>
bool ParseList(const std::string& text, std::vector<Element>* list, const Parse& parse) {
  list->clear();
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  return std::ranges::all_of(
      parts, [&](const std::string& part) { return parse(part, &list->emplace_back()); });
}

template <class Int>
auto NumbersInto(std::vector<Int>* to) {
  return [to](const std::string& text) {
    return ParseList(text, to, [](const std::string& part, Int* number) {
      return ParseNumber<Int>(part, 1, number);
    });
  };
}

}  // namespace

void CommandLine::Value(std::string_view name, std::function<bool(const std::string&)> set) {
  options_.push_back({std::string(name), std::move(set)});
}

void CommandLine::Flag(std::string_view name, bool* to) {
  Value(name, [to](const std::string&) { return *to = true; });
}

void CommandLine::Text(std::string_view name, std::string* to) {
  Value(name, [to](const std::string& text) {
    *to = text;
    return true;
  });
}

void CommandLine::Number(std::string_view name, int* to, int least) {
  Value(name, [to, least](const std::string& text) { return ParseNumber(text, least, to); });
}

void CommandLine::Numbers(std::string_view name, std::vector<int>* to) {
  Value(name, NumbersInto(to));
}
void CommandLine::Numbers(std::string_view name, std::vector<int64_t>* to) {
  Value(name, NumbersInto(to));
}

void CommandLine::Shapes(std::string_view name, std::vector<Shape>* to) {
  Value(name, [to](const std::string& text) { return ParseList(text, to, ParseShape); });
}

bool CommandLine::Parse(int argc, char** argv) const {
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::string> part = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const auto option = std::ranges::find(options_, part[0], &Option::name);
    if (option == options_.end() || !option->set(part.size() > 1 ? part[1] : "")) {
      std::fprintf(stderr, "%s: cannot use \"%s\"; see the first comment of its source\n",
                   program_.c_str(), argv[i]);
      return false;
    }
  }
  return true;
}

}  // namespace fulcrum::bench
