// Options by CLI11.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options.h"

#include <CLI/CLI.hpp>

namespace fulcrum::cli {
namespace {

// An empty value is what a script's unset variable leaves: taken for an option that was not given
// it would do something else than was asked, for everybody instead of for a share.
CLI::Option* NotEmpty(CLI::Option* option) {
  return option->check([](const std::string& value) {
    return std::string(value.empty() ? "the value is empty; leave it out to get the default" : "");
  });
}

}  // namespace

void Options::Flag(const std::string& name, bool* value, const std::string& help) {
  last_ = app_->add_flag(name, *value, help);
}
void Options::Add(const std::string& name, std::string* value, const std::string& help) {
  last_ = NotEmpty(app_->add_option(name, *value, help));
  if (!value->empty()) static_cast<CLI::Option*>(last_)->capture_default_str();
}
void Options::Add(const std::string& name, int* value, const std::string& help) {
  last_ = NotEmpty(app_->add_option(name, *value, help))->capture_default_str();
}
void Options::Add(const std::string& name, int64_t* value, const std::string& help) {
  last_ = NotEmpty(app_->add_option(name, *value, help))->capture_default_str();
}
void Options::Add(const std::string& name, std::optional<int64_t>* value, const std::string& help) {
  last_ = NotEmpty(app_->add_option(name, *value, help));
}
void Options::Add(const std::string& name, uint64_t* value, const std::string& help) {
  last_ = NotEmpty(app_->add_option(name, *value, help))->capture_default_str();
}
void Options::Add(const std::string& name, double* value, const std::string& help) {
  last_ = NotEmpty(app_->add_option(name, *value, help))->capture_default_str();
}
void Options::Add(const std::string& name, std::vector<std::string>* values,
                  const std::string& help) {
  CLI::Option* const option = NotEmpty(app_->add_option(name, *values, help));
  // An option takes one value each time it is given, so that what follows it is not swallowed.
  if (name.front() == '-') option->allow_extra_args(false);
  last_ = option;
}
void Options::Choice(const std::string& name, std::string* value,
                     const std::vector<std::string>& choices, const std::string& help) {
  CLI::Option* const option =
      NotEmpty(app_->add_option(name, *value, help))->check(CLI::IsMember(choices));
  if (!value->empty()) option->capture_default_str();
  last_ = option;
}
void Options::Text(const std::string& name, std::string* value, const std::string& help) {
  last_ = app_->add_option(name, *value, help);
}
void Options::Required() { static_cast<CLI::Option*>(last_)->required(); }

}  // namespace fulcrum::cli
