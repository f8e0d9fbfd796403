// A backend that passes everything on to another, for tests that change one thing of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/backend.h"

namespace fulcrum::test {

class PassingBackend : public Backend {
 public:
  explicit PassingBackend(std::unique_ptr<Backend> real) : real_(std::move(real)) {}

  std::string_view name() const override { return real_->name(); }
  const DeviceInfo& device() const override { return real_->device(); }
  std::span<const Arm> ladder() const override { return real_->ladder(); }
  absl::StatusOr<std::shared_ptr<ResidentWeight>> Upload(const WeightSource& source) override {
    return real_->Upload(source);
  }
  int64_t ResidentBytes(const WeightSpec& spec) const override {
    return real_->ResidentBytes(spec);
  }
  std::unique_ptr<LaunchSlot> NewSlot() override { return real_->NewSlot(); }
  int preferred_slots() const override { return real_->preferred_slots(); }
  LaunchShape Shape(const Arm& arm, const WeightSpec& spec, int m) const override {
    return real_->Shape(arm, spec, m);
  }
  bool healthy() const override { return real_->healthy(); }
  absl::StatusOr<LaunchTimes> Run(LaunchSlot& slot, const Launch& launch) override {
    return real_->Run(slot, launch);
  }

 protected:
  Backend& real() { return *real_; }

 private:
  const std::unique_ptr<Backend> real_;
};

}  // namespace fulcrum::test
