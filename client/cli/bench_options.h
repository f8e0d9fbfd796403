// What a benchmark run does. Filled from the command line by cmd_bench.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/arrivals.h"

namespace fulcrum::cli {

struct BenchOptions {
  std::vector<std::string> shards;
  bool together = false;  // all shards in one call instead of one after the other
  int clients = 1;        // closed loop: calls in flight; open loop: the most in flight
  int64_t rows = 1;
  double seconds = 5;
  double warmup = 1;  // at least; longer while page faults have not settled
  double rate = 0;    // calls a second; 0: closed loop
  std::string arrivals = "poisson";
  int burst = 8;
  std::string policy;
  std::string step;
  std::string output_type;
  int channels = 1;
  bool stream = false;
  bool retry = false;
  double verify_sample = 1;  // share of replies that are compared
  int payloads = 4;          // different activations, in turn
  uint64_t seed = 1;
  std::string weights;  // file and tensor of the (one) shard, for the oracle
  std::string tensor;
  int oracle_outputs = 64;  // elements of each recorded reference that the oracle recomputes
};

}  // namespace fulcrum::cli
