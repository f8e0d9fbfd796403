// See traffic_table.h.
// SPDX-License-Identifier: Apache-2.0
#include "scheduler/traffic_table.h"

#include <algorithm>

namespace fulcrum {
namespace {

int64_t NumberOf(absl::Time at) {
  return absl::ToUnixMillis(at) / absl::ToInt64Milliseconds(TrafficTable::kPane);
}

}  // namespace

void TrafficTable::Pane::Begin(int64_t at_number) {
  number = at_number;
  total = 0;
  full = false;
  places.clear();
  rows.clear();
  errors.clear();
  keys.clear();
  names.clear();
}

void TrafficTable::Pane::Count(uint64_t key, absl::FunctionRef<std::string()> name, int64_t more) {
  total += more;
  const auto [place, fresh] = places.try_emplace(key, rows.size());
  if (!fresh) {
    rows[place->second] += more;
    return;
  }
  if (rows.size() < kUnits) {
    rows.push_back(more);
    errors.push_back(0);
    keys.push_back(key);
    names.push_back(name());
    return;
  }
  full = true;
  const auto at = static_cast<size_t>(std::min_element(rows.begin(), rows.end()) - rows.begin());
  place->second = at;
  places.erase(keys[at]);
  errors[at] = rows[at];
  rows[at] += more;
  keys[at] = key;
  names[at] = name();
}

void TrafficTable::Add(uint64_t key, absl::FunctionRef<std::string()> name, int64_t rows,
                       absl::Time at) {
  const int64_t number = NumberOf(at);
  Pane& pane = panes_[static_cast<size_t>(number) % kPanes];
  if (pane.number > number) return;  // a thread that was kept for longer than the window
  if (pane.number < number) pane.Begin(number);
  pane.Count(key, name, rows);
}

void TrafficTable::AddTo(absl::Time now, SeenTraffic& seen) const {
  const int64_t newest = NumberOf(now), oldest = newest - static_cast<int64_t>(kFullPanes);
  for (const Pane& pane : panes_) {
    if (pane.number < oldest || pane.number > newest) continue;
    seen.rows += pane.total;
    seen.more |= pane.full;
    for (size_t i = 0; i < pane.keys.size(); ++i) {
      seen.units.push_back({.key = pane.keys[i], .rows = pane.rows[i] - pane.errors[i]});
    }
  }
}

std::string TrafficTable::NameOf(uint64_t key) const {
  for (const Pane& pane : panes_) {
    if (const auto place = pane.places.find(key); place != pane.places.end()) {
      return pane.names[place->second];
    }
  }
  return std::string();
}

void Merge(std::vector<UnitRows>& units) {
  std::sort(units.begin(), units.end(),
            [](const UnitRows& a, const UnitRows& b) { return a.key < b.key; });
  size_t kept = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (kept > 0 && units[kept - 1].key == units[i].key) {
      units[kept - 1].rows += units[i].rows;
    } else {
      units[kept++] = units[i];
    }
  }
  units.resize(kept);
}

}  // namespace fulcrum
