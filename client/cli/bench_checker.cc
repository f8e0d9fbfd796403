// References and the oracle's sample of them.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench_checker.h"

#include <bit>
#include <cstring>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/names.h"
#include "kernels/formats/bf16.h"
#include "kernels/numerics/oracle.h"
#include "kernels/weights/synthetic.h"

namespace fulcrum::cli {
namespace {

NumericsClass ClassOf(int wire) {
  switch (wire) {
    case v1::NUMERICS_CLASS_MMA:
      return NumericsClass::kMma;
    case v1::NUMERICS_CLASS_BLOCKFOLD:
      return NumericsClass::kBlockfold;
    default:
      return NumericsClass::kExact;
  }
}

// Element `index` of an output, and the oracle's value as it would be stored, as bits.
uint32_t StoredBits(const std::string& bytes, size_t index, DType type) {
  uint32_t bits = 0;
  const size_t width = SizeOf(type);
  std::memcpy(&bits, bytes.data() + index * width, width);
  return bits;
}
uint32_t StoredBits(float value, DType type) {
  return type == DType::kF32 ? std::bit_cast<uint32_t>(CanonicalF32(value)) : F32ToBf16(value);
}

}  // namespace

Match ReplyChecker::Check(int payload, const v1::ProjectResponse& response,
                          std::vector<int>* references) {
  bool differs = false, unknown = false;
  for (const v1::ShardOutput& output : response.outputs()) {
    if (output.numerics() == v1::NUMERICS_CLASS_W8A8 ||
        output.numerics() == v1::NUMERICS_CLASS_UNSPECIFIED) {
      unknown = true;
      continue;
    }
    const bool exact = output.numerics() == v1::NUMERICS_CLASS_EXACT;
    const Key key(output.shard(), payload, output.numerics(), output.hash(),
                  exact ? 0 : response.provenance().lever_epoch());
    const Reference* reference;
    {
      absl::MutexLock lock(&mu_);
      const int id = static_cast<int>(references_.size());
      const auto [found, added] = references_.try_emplace(key, Reference{id, {}});
      if (added) found->second.bytes = output.data();
      reference = &found->second;
    }
    if (reference->bytes == output.data()) {
      references->push_back(reference->id);
    } else {
      differs = true;
    }
  }
  if (differs) return Match::kDiffers;
  return unknown ? Match::kNoReference : Match::kEqual;
}

absl::StatusOr<ReplyChecker::OracleResult> ReplyChecker::CompareWithOracle(
    const std::string& shard, const WeightSource& source,
    const std::vector<std::vector<uint16_t>>& activations, DType output_type, int sample) const {
  const WeightSpec& spec = source.spec();
  OracleResult result;
  absl::MutexLock lock(&mu_);
  for (const auto& [key, reference] : references_) {
    const auto& [name, payload, numerics, hash, epoch] = key;
    if (name != shard) continue;
    const std::vector<uint16_t>& x = activations[static_cast<size_t>(payload)];
    const auto k = static_cast<size_t>(spec.k);
    const size_t rows = x.size() / k;
    if (reference.bytes.size() != rows * static_cast<size_t>(spec.n) * SizeOf(output_type)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: replies of %d bytes do not fit %d rows of N = %d: not this weight",
                          shard, reference.bytes.size(), rows, spec.n));
    }
    std::mt19937_64 random(static_cast<uint64_t>(reference.id));
    bool right = true;
    for (int i = 0; i < sample; ++i, ++result.elements) {
      const size_t row = random() % rows;
      const auto column = static_cast<int64_t>(random() % static_cast<uint64_t>(spec.n));
      const auto want = numerics::ReferenceElement(
          ClassOf(numerics), source, column, std::span<const uint16_t>(x).subspan(row * k, k));
      if (!want.ok()) return want.status();
      const size_t index = row * static_cast<size_t>(spec.n) + static_cast<size_t>(column);
      if (StoredBits(reference.bytes, index, output_type) == StoredBits(*want, output_type)) {
        continue;
      }
      right = false;
      if (result.first.empty()) {
        result.first = absl::StrFormat(
            "%s, class %s, payload %d, row %d, column %d: got 0x%x, the oracle says 0x%x", shard,
            Word(static_cast<v1::NumericsClass>(numerics)), payload, row, column,
            StoredBits(reference.bytes, index, output_type), StoredBits(*want, output_type));
      }
    }
    if (!right) result.rejected.push_back(reference.id);
  }
  return result;
}

absl::StatusOr<std::shared_ptr<const WeightSource>> SyntheticSourceOf(const v1::Shard& shard) {
  constexpr char kPrefix[] = "synthetic:";
  const std::string& origin = shard.origin();
  uint64_t seed = 0;
  if (origin.rfind(kPrefix, 0) != 0 ||
      !absl::SimpleAtoi(origin.substr(sizeof(kPrefix) - 1), &seed)) {
    return absl::NotFoundError(absl::StrCat(shard.name(), " is not synthetic"));
  }
  WeightSpec spec{
      .name = shard.name().substr(shard.name().rfind('/') + 1), .n = shard.n(), .k = shard.k()};
  const std::optional<WeightFormat> format = ParseWeightFormat(Word(shard.format()));
  if (!format) return absl::NotFoundError(absl::StrCat(shard.name(), ": unknown format"));
  spec.format = *format;
  for (const int block : {64, 128}) {
    spec.q2_block = block;
    auto source = SyntheticWeight(spec, seed);
    std::string hash;
    if (source.ok() && ContentHash(**source, &hash).ok() && hash == shard.hash()) return source;
    if (spec.format != WeightFormat::kQ2_0) break;
  }
  return absl::NotFoundError(absl::StrCat(
      shard.name(), ": this build makes other weights of that seed than the node has"));
}

}  // namespace fulcrum::cli
