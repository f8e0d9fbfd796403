// A product computed and judged here, with the node's own code: what `fulcrum verify` reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/ladder/levers.h"
#include "kernels/numerics/budget.h"
#include "kernels/types.h"
#include "kernels/weights/weight_source.h"

namespace fulcrum::cli {

struct OfflineWeight {
  std::shared_ptr<const WeightSource> source;
  Family family = Family::kOther;  // by the tensor's name, as importing would decide
};

// `tensor` as in the file; a name without its last ".weight" is understood too.
absl::StatusOr<OfflineWeight> OpenWeight(const std::string& path, const std::string& tensor);

struct ProductRequest {
  std::string backend = "cpu";
  int threads = 0;
  Policy policy = Policy::kExact;
  Step step = Step::kDecode;
  DType output_type = DType::kF32;
  LeverSet levers;
};

struct Product {
  std::string arm;
  std::string device;
  NumericsClass numerics = NumericsClass::kExact;
  std::vector<float> values;  // [m, n], values of the output type
};

// x: BF16 bits [m, K]. The arm is the ladder's choice, as on a node.
absl::StatusOr<Product> Compute(const OfflineWeight& weight, std::span<const uint16_t> x, int m,
                                const ProductRequest& request);

// One arm on the whole weight, whatever the ladder would choose.
absl::StatusOr<Product> RunArm(Backend& backend, const Arm& arm, const WeightSource& source,
                               std::span<const uint16_t> x, int m, DType output_type);
// Stored outputs (bf16 or f32) as floats.
std::vector<float> Widen(std::span<const std::byte> bytes, DType type);

// By the budget that the format and class state. Expected values are float64 products of the
// dequantised weights and the BF16 activations.
absl::StatusOr<numerics::Verdict> Grade(const WeightSource& source, std::span<const uint16_t> x,
                                        int m, std::span<const double> expected,
                                        const Product& product, DType output_type);

// The largest distance in representable values, over the values whose expectation is at least the
// root mean square of its row. Near zero the distance says nothing: 1e-20 for 0 is a billion apart.
int64_t MaxUlpOfLargeValues(std::span<const double> expected, int m, const Product& product,
                            DType output_type);

// How many values differ in any bit from the class's reference order; -1 when the class has none.
absl::StatusOr<int64_t> CountOracleMismatches(const WeightSource& source,
                                              std::span<const uint16_t> x, int m,
                                              const Product& product, DType output_type);

}  // namespace fulcrum::cli
