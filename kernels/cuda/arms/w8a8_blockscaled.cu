// fp8, class w8a8, prefill of any number of rows, in pieces that fit into the scratch.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arms.h"
#include "kernels/cuda/w8a8/w8a8.h"

namespace fulcrum::cuda {

absl::Status w8a8_blockscaled(const ArmArgs& args) {
  return InPieces(args, "w8a8_blockscaled", QuantiseAndMultiply);
}

}  // namespace fulcrum::cuda
