// See placement.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/placement.h"

#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/weights/tensor_info.h"

namespace fulcrum {
namespace {

bool MayTake(const Backend& backend, std::string_view device) {
  return backend.healthy() && (device.empty() || backend.device().id == device);
}

}  // namespace

int64_t DeviceUse::Room() const {
  const int64_t budget = backend->device().memory_bytes;
  return (budget > 0 ? budget : std::numeric_limits<int64_t>::max()) - used;
}

absl::Status CheckDevice(std::span<const Backend* const> devices, std::string_view device) {
  std::string ids;
  for (const Backend* backend : devices) {
    if (MayTake(*backend, device)) return absl::OkStatus();
    absl::StrAppend(&ids, ids.empty() ? "" : ", ", backend->device().id);
  }
  if (device.empty()) return absl::UnavailableError("no healthy device to place it on");
  return absl::InvalidArgumentError(
      absl::StrFormat("no healthy device %s; devices are: %s", Quoted(device), ids));
}

absl::StatusOr<size_t> ChooseDevice(std::span<const DeviceUse> devices, const WeightSpec& spec,
                                    std::string_view device) {
  std::vector<const Backend*> all;
  for (const DeviceUse& use : devices) all.push_back(use.backend);
  if (absl::Status s = CheckDevice(all, device); !s.ok()) return s;
  size_t best = devices.size();
  int64_t most = std::numeric_limits<int64_t>::min();
  for (size_t i = 0; i < devices.size(); ++i) {
    const Backend& backend = *devices[i].backend;
    if (!MayTake(backend, device)) continue;
    // Room for this very format and shape: devices lay weights out differently.
    const int64_t room = devices[i].Room() - backend.ResidentBytes(spec);
    if (best != devices.size() && room <= most) continue;
    most = room;
    best = i;
  }
  if (best == devices.size()) return absl::UnavailableError("the device was lost just now");
  if (most >= 0) return best;
  const Backend& backend = *devices[best].backend;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "needs %d bytes on device %s, which has %d of %d free", backend.ResidentBytes(spec),
      backend.device().id, devices[best].Room(), backend.device().memory_bytes));
}

absl::Status PlaceAll(std::span<const Backend* const> devices, std::span<PlacedWeight> weights) {
  std::vector<DeviceUse> uses;
  int64_t budget = 0, needed = 0;
  for (const Backend* device : devices) {
    uses.push_back({.backend = device, .used = 0});
    budget += device->device().memory_bytes;
  }
  std::map<std::string, std::string> device_of_group;
  const PlacedWeight* first = nullptr;
  for (PlacedWeight& weight : weights) {
    std::string* const group =
        weight.group.empty() || !weight.device.empty() ? nullptr : &device_of_group[weight.group];
    absl::StatusOr<size_t> chosen =
        ChooseDevice(uses, weight.spec, group == nullptr ? weight.device : *group);
    if (group != nullptr && !group->empty() && absl::IsResourceExhausted(chosen.status())) {
      chosen = ChooseDevice(uses, weight.spec, "");  // better apart than not at all
    }
    weight.status = chosen.status();
    const size_t place = chosen.ok() ? *chosen : 0;
    needed += uses[place].backend->ResidentBytes(weight.spec);
    if (!chosen.ok()) {
      if (first == nullptr && absl::IsResourceExhausted(weight.status)) first = &weight;
      continue;
    }
    uses[place].used += uses[place].backend->ResidentBytes(weight.spec);
    weight.placed = uses[place].backend->device().id;
    if (group != nullptr) *group = weight.placed;
  }
  if (first == nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the weights need %d bytes, the budget is %d (memory_budget_bytes, on %d device%s): %s is "
      "the first without room, it %s",
      needed, budget, devices.size(), devices.size() == 1 ? "" : "s", first->name,
      first->status.message()));
}

}  // namespace fulcrum
