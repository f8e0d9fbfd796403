// How many rows each of many units (clients, connections, shards) sent in the last minute, in a
// bounded space: a fixed number of units in each pane of time, by the method of Metwally, Agrawal
// and El Abbadi ("space saving", 2005). A unit that finds no room takes the place of the smallest
// one and its count, which becomes its possible error. So a unit with a large share is always
// there, whatever names others make up, and each count is at most its error too high.
// Not thread-safe: traffic.h guards it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace fulcrum {

struct UnitRows {
  uint64_t key = 0;  // KeyHash of what names it (canary_split.h)
  int64_t rows = 0;  // at least so many
};

// What tables know of the last minute.
struct SeenTraffic {
  int64_t rows = 0;  // of all units
  std::vector<UnitRows> units = {};
  bool more = false;  // units that are not listed sent rows too
};
// Makes one of the entries that a unit has.
void Merge(std::vector<UnitRows>& units);

class TrafficTable {
 public:
  static constexpr size_t kFullPanes = 4;
  static constexpr absl::Duration kWindow = absl::Minutes(1), kPane = absl::Seconds(15);
  static constexpr size_t kUnits = 512;  // in each pane

  // `name` is called for a unit that is not in the pane yet.
  void Add(uint64_t key, absl::FunctionRef<std::string()> name, int64_t rows, absl::Time at);

  // Adds the last minute, and up to one pane more, to what other tables had: up to kMostEntries
  // entries, of a unit one for each pane that has it (Merge). Copies numbers alone, so that a
  // thread that adds rows meanwhile waits for a few microseconds at most.
  void AddTo(absl::Time now, SeenTraffic& seen) const;
  // Empty for a unit that is in no pane.
  std::string NameOf(uint64_t key) const;

  static constexpr size_t kPanes = kFullPanes + 1;  // and the one that time is in
  static constexpr size_t kMostEntries = kPanes * kUnits;

 private:
  struct Pane {
    int64_t number = -1;  // of its time, in panes since the epoch
    int64_t total = 0;
    bool full = false;                            // a unit lost its place
    std::unordered_map<uint64_t, size_t> places;  // by key: where it is in the following
    std::vector<int64_t> rows, errors;
    std::vector<uint64_t> keys;
    std::vector<std::string> names;

    void Begin(int64_t at_number);
    void Count(uint64_t key, absl::FunctionRef<std::string()> name, int64_t more);
  };
  std::array<Pane, kPanes> panes_;
};

}  // namespace fulcrum
