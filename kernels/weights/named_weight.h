// A weight with the name, family and layer that a client and the ladder know it by: what importing
// a checkpoint (checkpoint.h) and making a synthetic model (synthetic.h) both yield.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "kernels/types.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum {

struct NamedWeight {
  std::string shard;  // "layers.3.ffn_gate", "lm_head": short, stable, unique in its model
  Family family = Family::kOther;
  int layer = -1;  // of the decoder stack, -1 where there is none
  std::shared_ptr<const WeightSource> source;
};

}  // namespace fulcrum
