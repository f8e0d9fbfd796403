// Converts BF16, F16 and F32 safetensors to what the node serves: FP8 block weights in safetensors,
// or Q2_0 in GGUF v3. Streams by stripes of rows, so memory does not grow with the model. The
// output path never holds half a file (output_file.h).
// The rounding rules are kernels/formats'.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/types.h"
#include "kernels/weights/checkpoint.h"

namespace fulcrum {

struct QuantizeOptions {
  std::string input;                                 // any safetensors path that ReadCatalog takes
  std::string output;                                // a file, must not be one of the inputs
  bool replace = false;                              // an output that exists already
  WeightFormat target = WeightFormat::kFp8Block128;  // or kQ2_0
  // Shell patterns over tensor names. Empty: every projection except the LM head. Else exactly the
  // 2-D tensors that match, LM head and embeddings among them if they do; each pattern has to match
  // a tensor, and one of them a tensor that can be converted.
  std::vector<std::string> convert = {};
};

struct QuantizeReport {
  std::vector<std::string> converted;
  std::vector<SkippedTensor> kept;     // copied as they are, and why
  std::vector<SkippedTensor> dropped;  // not in the output, and why
  uint64_t bytes_in = 0;               // of all tensors read
  uint64_t bytes_out = 0;              // of the output file
};

// What a node refuses as a checkpoint is refused here too, with the same words (verdict.h); what it
// serves, were it of a type that is served, is converted, and served of the output.
// INVALID_ARGUMENT names tensor, row and column of a weight that is not finite, or that no Q2_0
// scale can hold; ALREADY_EXISTS.
absl::StatusOr<QuantizeReport> Quantize(const QuantizeOptions& options);

}  // namespace fulcrum
