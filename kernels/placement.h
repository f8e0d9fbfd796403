// Which device a weight goes to and whether it has room there, from its size alone: nothing is read
// or loaded. The shard store asks it for every load, a start for all configured weights together
// before the node listens, `fulcrum inspect` for a checkpoint; so a weight that has no room is
// refused from its header everywhere, and by the same rule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

struct DeviceUse {
  const Backend* backend = nullptr;
  int64_t used = 0;  // resident bytes, in use or promised

  // Bytes that are left of the device's budget; a very large number where it has none.
  int64_t Room() const;
};

// Whether there is a healthy device, with the id `device` where it is not empty. INVALID_ARGUMENT:
// no healthy device has this id; UNAVAILABLE: none is healthy. These messages and the next ones go
// on behind the name of what is placed.
absl::Status CheckDevice(std::span<const Backend* const> devices, std::string_view device);

// The index of the healthy device with the most room for `spec`, of those with the id `device`
// where it is not empty. As CheckDevice, and RESOURCE_EXHAUSTED: the best one has not enough
// room.
absl::StatusOr<size_t> ChooseDevice(std::span<const DeviceUse> devices, const WeightSpec& spec,
                                    std::string_view device);

struct PlacedWeight {
  std::string name;  // for errors
  WeightSpec spec;
  std::string device;  // asked for; "" = any
  std::string group;   // weights of a group go to one device if it has room; "" = none
  // Results.
  absl::Status status;
  std::string placed;  // the device's id
};

// Places weights one after the other, as they are loaded, on devices that hold nothing yet. What
// has no room is left out and the rest goes on. Returns RESOURCE_EXHAUSTED where any was left out
// for want of room: bytes needed in all, the budget, and the first that found none.
absl::Status PlaceAll(std::span<const Backend* const> devices, std::span<PlacedWeight> weights);

}  // namespace fulcrum
