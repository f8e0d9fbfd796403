// A call with activations of its own, row by row.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/test_call.h"

namespace fulcrum::test {

class ActivationCall : public TestCall {
 public:
  ActivationCall(std::shared_ptr<const Shard> shard, std::vector<uint16_t> activations)
      : TestCall({shard}, static_cast<int>(activations.size() / static_cast<size_t>(shard->k()))),
        activations_(std::move(activations)) {}
  void Gather(uint16_t* out) override {
    std::memcpy(out, activations_.data(), activations_.size() * sizeof(uint16_t));
  }
  const std::vector<uint16_t>& activations() const { return activations_; }

 private:
  const std::vector<uint16_t> activations_;
};

}  // namespace fulcrum::test
