// Text from elsewhere: whether it may go into a message, and how it is shown.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace fulcrum::cli {

// INVALID_ARGUMENT naming the option: a message of gRPC holds UTF-8 alone, and what it says of
// other bytes does not help.
absl::Status CheckUtf8(const std::string& option, const std::string& text);

// The text with what could begin a line, steer a terminal or reorder what is read escaped, and
// bytes that are not UTF-8: whoever wrote it cannot forge the lines around it.
std::string OneLine(const std::string& text);

}  // namespace fulcrum::cli
