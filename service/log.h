// The node's log: one line an event to stderr, `key=value` pairs (logfmt) with the time first, so
// that people and collectors read the same text. Thread-safe; a line is one write. What is worth a
// line is each caller's to decide; nothing here is on the path of a call unless calls are logged.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace fulcrum::service {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
std::optional<LogLevel> ParseLogLevel(std::string_view name);  // "debug", "info", "warn", "error"

// One pair of a line. Values with spaces, quotes, control characters or bytes above ASCII are
// quoted and escaped; long ones are cut.
struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, const absl::Status& v) : key(k), value(v.ToString()) {}
  LogField(std::string_view k, absl::Duration v)
      : key(k), value(absl::StrCat(absl::ToDoubleSeconds(v))) {}
  template <class Number>
  LogField(std::string_view k, Number v) : key(k), value(absl::StrCat(v)) {}

  std::string_view key;
  std::string value;
};

class Logger {
 public:
  // `descriptor` is written to and stays the caller's.
  explicit Logger(LogLevel least, int descriptor = 2) : least_(least), descriptor_(descriptor) {}

  bool enabled(LogLevel level) const { return level >= least_; }
  void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) const;
  void Debug(std::string_view event, std::initializer_list<LogField> fields = {}) const;
  void Info(std::string_view event, std::initializer_list<LogField> fields = {}) const;
  void Warn(std::string_view event, std::initializer_list<LogField> fields = {}) const;
  void Error(std::string_view event, std::initializer_list<LogField> fields = {}) const;

 private:
  const LogLevel least_;
  const int descriptor_;
};

// The line without its end, for a given time.
std::string FormatLogLine(absl::Time time, LogLevel level, std::string_view event,
                          std::initializer_list<LogField> fields);

}  // namespace fulcrum::service
