// Enum words from the enums' own descriptors: a value added to the wire needs nothing here.
// SPDX-License-Identifier: Apache-2.0
#include "client/cli/names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace fulcrum::cli {
namespace {

using google::protobuf::EnumDescriptor;

// "WEIGHT_FORMAT_" of "WEIGHT_FORMAT_UNSPECIFIED", which every enum of ours begins with.
std::string Prefix(const EnumDescriptor& type) {
  const std::string& zero = type.FindValueByNumber(0)->name();
  return zero.substr(0, zero.size() - std::string("UNSPECIFIED").size());
}

std::string WordOf(const EnumDescriptor& type, int value) {
  const auto* const found = type.FindValueByNumber(value);
  if (found == nullptr) return absl::StrCat(value);
  return absl::AsciiStrToLower(found->name().substr(Prefix(type).size()));
}

template <typename Enum>
absl::StatusOr<Enum> Parse(const char* what, const std::string& word) {
  const EnumDescriptor& type = *google::protobuf::GetEnumDescriptor<Enum>();
  if (word.empty()) return static_cast<Enum>(0);
  const auto* const found = type.FindValueByName(Prefix(type) + absl::AsciiStrToUpper(word));
  if (found != nullptr && found->number() != 0) return static_cast<Enum>(found->number());
  std::string allowed;
  for (int i = 1; i < type.value_count(); ++i) {
    absl::StrAppend(&allowed, i > 1 ? ", " : "", WordOf(type, type.value(i)->number()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": expected one of ", allowed, ", got \"", word, "\""));
}

}  // namespace

#define FULCRUM_WORD(Enum) \
  std::string Word(v1::Enum value) { return WordOf(*v1::Enum##_descriptor(), value); }
FULCRUM_WORD(WeightFormat)
FULCRUM_WORD(Family)
FULCRUM_WORD(Phase)
FULCRUM_WORD(Step)
FULCRUM_WORD(Policy)
FULCRUM_WORD(NumericsClass)
FULCRUM_WORD(MmaModel)
FULCRUM_WORD(CloseReason)
FULCRUM_WORD(ShardState)
FULCRUM_WORD(LeverKind)
FULCRUM_WORD(LeverSource)
FULCRUM_WORD(CanaryUnit)
FULCRUM_WORD(CanaryState)
FULCRUM_WORD(CanarySuccess)
#undef FULCRUM_WORD

absl::StatusOr<v1::Policy> ParsePolicyWord(const std::string& word) {
  return Parse<v1::Policy>("policy", word);
}
absl::StatusOr<v1::Step> ParseStepWord(const std::string& word) {
  return Parse<v1::Step>("step", word);
}
absl::StatusOr<v1::DType> ParseDTypeWord(const std::string& word) {
  return Parse<v1::DType>("type", word);
}
absl::StatusOr<v1::Family> ParseFamilyWord(const std::string& word) {
  return Parse<v1::Family>("family", word);
}

}  // namespace fulcrum::cli
