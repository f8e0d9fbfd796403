// Formatting and writing of log lines.
// SPDX-License-Identifier: Apache-2.0
#include "service/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace fulcrum::service {
namespace {

constexpr size_t kMaxValue = 2048;
constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warn", "error"};

bool NeedsQuotes(std::string_view value) {
  return value.empty() || std::any_of(value.begin(), value.end(), [](char c) {
           return c <= ' ' || c == '"' || c == '=' || c == '\\' || c >= 0x7f;
         });
}

void AppendValue(std::string& line, std::string_view whole) {
  // Names come from callers and may have megabytes.
  const std::string_view value = whole.substr(0, kMaxValue);
  if (value.size() == whole.size() && !NeedsQuotes(value)) {
    line.append(value);
    return;
  }
  line.push_back('"');
  for (char c : value) {
    if (c == '"' || c == '\\') {
      line.push_back('\\');
      line.push_back(c);
    } else if (c == '\n') {
      line.append("\\n");
    } else if (c < ' ' || c >= 0x7f) {
      absl::StrAppendFormat(&line, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      line.push_back(c);
    }
  }
  if (value.size() < whole.size()) absl::StrAppendFormat(&line, "... of %d bytes", whole.size());
  line.push_back('"');
}

}  // namespace

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  const auto it = std::find(kLevels.begin(), kLevels.end(), name);
  if (it == kLevels.end()) return std::nullopt;
  return static_cast<LogLevel>(it - kLevels.begin());
}

std::string FormatLogLine(absl::Time time, LogLevel level, std::string_view event,
                          std::initializer_list<LogField> fields) {
  std::string line =
      absl::StrFormat("time=%s level=%s event=",
                      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone()),
                      kLevels[static_cast<size_t>(level)]);
  AppendValue(line, event);
  for (const LogField& field : fields) {
    line.push_back(' ');
    line.append(field.key);
    line.push_back('=');
    AppendValue(line, field.value);
  }
  return line;
}

void Logger::Log(LogLevel level, std::string_view event,
                 std::initializer_list<LogField> fields) const {
  if (!enabled(level)) return;
  std::string line = FormatLogLine(absl::Now(), level, event, fields);
  line.push_back('\n');
  const char* data = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t n = ::write(descriptor_, data, left);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nobody listens; the node goes on
    data += n;
    left -= static_cast<size_t>(n);
  }
}

void Logger::Debug(std::string_view event, std::initializer_list<LogField> fields) const {
  Log(LogLevel::kDebug, event, fields);
}
void Logger::Info(std::string_view event, std::initializer_list<LogField> fields) const {
  Log(LogLevel::kInfo, event, fields);
}
void Logger::Warn(std::string_view event, std::initializer_list<LogField> fields) const {
  Log(LogLevel::kWarn, event, fields);
}
void Logger::Error(std::string_view event, std::initializer_list<LogField> fields) const {
  Log(LogLevel::kError, event, fields);
}

}  // namespace fulcrum::service
