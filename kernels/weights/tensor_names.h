// What a tensor's name says it is: the projection families of Hugging Face (Qwen, Llama, DeepSeek)
// and llama.cpp GGUF spellings, as rows of one table. Names that no row knows are of family
// `other`; names that say "not a projection" are skipped with the reason.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kernels/types.h"

namespace fulcrum {

struct TensorRole {
  std::string skip;   // why the tensor is no projection to serve; empty when it is one
  std::string shard;  // "layers.3.ffn_gate"
  Family family = Family::kOther;
  int layer = -1;
};
TensorRole RoleOf(std::string_view tensor);

}  // namespace fulcrum
