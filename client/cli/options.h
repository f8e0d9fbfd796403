// What a subcommand declares about its command line. Parsing is CLI11's, seen by app.cc and
// options.cc alone: it is the slowest header of the command.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fulcrum::cli {

// `name` is "--long", "-s,--long", or a bare word for a positional. The value keeps what it holds
// (shown as the default) unless the option is given. An empty value is refused, except of Text.
class Options {
 public:
  explicit Options(CLI::App* app) : app_(app) {}

  void Flag(const std::string& name, bool* value, const std::string& help);
  void Add(const std::string& name, std::string* value, const std::string& help);
  void Add(const std::string& name, int* value, const std::string& help);
  void Add(const std::string& name, int64_t* value, const std::string& help);
  void Add(const std::string& name, std::optional<int64_t>* value, const std::string& help);
  void Add(const std::string& name, uint64_t* value, const std::string& help);
  void Add(const std::string& name, double* value, const std::string& help);
  void Add(const std::string& name, std::vector<std::string>* values, const std::string& help);
  // One of `choices`.
  void Choice(const std::string& name, std::string* value, const std::vector<std::string>& choices,
              const std::string& help);
  // Free text, where nothing says as much as no option.
  void Text(const std::string& name, std::string* value, const std::string& help);
  // The option declared last must be given.
  void Required();

 private:
  CLI::App* const app_;
  void* last_ = nullptr;  // CLI::Option
};

}  // namespace fulcrum::cli
