// A canary on the command line: the options that start one, and how one is shown to people.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/options.h"
#include "fulcrum/v1/lever_service.pb.h"

namespace fulcrum::cli {

class CanaryOptions {
 public:
  void Declare(Options& options);
  bool asked() const { return !share_.empty(); }
  // INVALID_ARGUMENT for options that need --canary, which is not there.
  absl::Status Check() const;
  // INVALID_ARGUMENT names the option and what it takes.
  absl::Status Fill(v1::StartCanaryRequest* request) const;

 private:
  std::string share_, by_, promote_after_, hold_after_;
  std::vector<std::string> guards_;
  bool allow_uneven_ = false;
};

// How many clients sent rows in the last minute, one line.
void PrintSeen(std::ostream& out, const v1::UnitTraffic& traffic, v1::CanaryUnit unit);
// And which share of them the canary's side would have had. Nothing for a node that does not say.
void PrintTraffic(std::ostream& out, const v1::Canary& canary);
// What a canary would be: its share, in units and in traffic, and the levers of both sides.
void PrintCanaryPlan(std::ostream& out, const v1::Canary& canary);
// State, sides, and a table of control against canary by family and rows.
void PrintCanary(std::ostream& out, const v1::Canary& canary);

// "10m" to seconds; INVALID_ARGUMENT names `option`.
absl::Status ParseSeconds(const std::string& option, const std::string& text, double* seconds);

}  // namespace fulcrum::cli
