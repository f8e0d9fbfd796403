// Every value crosses the wire's enums and comes back; defaults and unknown numbers.
// SPDX-License-Identifier: Apache-2.0
#include "service/proto_names.h"

#include <gtest/gtest.h>

#include <cctype>

namespace fulcrum::service {
namespace {

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The wire's name is the node's name, upper case, behind the enum's own.
template <class Own, class Wire>
void ExpectSameName(Own own, const std::string& prefix, const std::string& (*wire_name)(Wire)) {
  EXPECT_EQ(Lower(wire_name(ToProto(own))), prefix + std::string(Name(own)));
}

TEST(ProtoNames, WireNamesAreTheNodesNames) {
  for (Family v : kAllFamilies) ExpectSameName(v, "family_", &v1::Family_Name<v1::Family>);
  for (Phase v : kAllPhases) ExpectSameName(v, "phase_", &v1::Phase_Name<v1::Phase>);
  for (Step v : kAllSteps) ExpectSameName(v, "step_", &v1::Step_Name<v1::Step>);
  for (Policy v : kAllPolicies) ExpectSameName(v, "policy_", &v1::Policy_Name<v1::Policy>);
  for (WeightFormat v : kAllWeightFormats) {
    ExpectSameName(v, "weight_format_", &v1::WeightFormat_Name<v1::WeightFormat>);
  }
  for (NumericsClass v : kAllNumericsClasses) {
    ExpectSameName(v, "numerics_class_", &v1::NumericsClass_Name<v1::NumericsClass>);
  }
  for (MmaModel v : kAllMmaModels) {
    ExpectSameName(v, "mma_model_", &v1::MmaModel_Name<v1::MmaModel>);
  }
  for (CloseReason v : kAllCloseReasons) {
    ExpectSameName(v, "close_reason_", &v1::CloseReason_Name<v1::CloseReason>);
  }
  for (CanaryUnit v : kAllCanaryUnits) {
    ExpectSameName(v, "canary_unit_", &v1::CanaryUnit_Name<v1::CanaryUnit>);
  }
  for (CanarySuccess v : kAllCanarySuccesses) {
    ExpectSameName(v, "canary_success_", &v1::CanarySuccess_Name<v1::CanarySuccess>);
  }
  for (CanaryState v : kAllCanaryStates) {
    ExpectSameName(v, "canary_state_", &v1::CanaryState_Name<v1::CanaryState>);
  }
  for (DType v : {DType::kBf16, DType::kF16, DType::kF32}) {
    ExpectSameName(v, "dtype_", &v1::DType_Name<v1::DType>);
  }
}

template <class Wire, class Parse>
void ExpectRoundTrip(int last, Parse parse) {
  for (int number = 1; number <= last; ++number) {
    const auto own = parse(static_cast<Wire>(number));
    ASSERT_TRUE(own.has_value()) << number;
    EXPECT_EQ(static_cast<int>(ToProto(*own)), number);
  }
  for (int number : {last + 1, 99, -1, 2147483647}) {
    EXPECT_FALSE(parse(static_cast<Wire>(number)).has_value()) << number;
  }
}

TEST(ProtoNames, EveryNumberComesBackAndUnknownOnesDoNot) {
  ExpectRoundTrip<v1::DType>(v1::DType_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::Family>(v1::Family_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::Step>(v1::Step_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::Policy>(v1::Policy_MAX, [](auto v) { return FromProto(v, Policy::kExact); });
  ExpectRoundTrip<v1::WeightFormat>(v1::WeightFormat_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::Phase>(v1::Phase_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::NumericsClass>(v1::NumericsClass_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::CloseReason>(v1::CloseReason_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::ShardState>(v1::ShardState_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::LeverSource>(v1::LeverSource_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::CanaryUnit>(v1::CanaryUnit_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::CanarySuccess>(v1::CanarySuccess_MAX, [](auto v) { return FromProto(v); });
  ExpectRoundTrip<v1::LeverKind>(v1::LeverKind_MAX, [](auto v) { return FromProto(v); });
}

TEST(ProtoNames, UnspecifiedIsTheDocumentedDefaultOrNothing) {
  EXPECT_EQ(FromProto(v1::DTYPE_UNSPECIFIED), DType::kBf16);
  EXPECT_EQ(FromProto(v1::FAMILY_UNSPECIFIED), Family::kOther);
  EXPECT_EQ(FromProto(v1::STEP_UNSPECIFIED), Step::kDecode);
  EXPECT_EQ(FromProto(v1::POLICY_UNSPECIFIED, Policy::kExact), Policy::kExact);
  EXPECT_EQ(FromProto(v1::POLICY_UNSPECIFIED, Policy::kFastest), Policy::kFastest);
  EXPECT_FALSE(FromProto(v1::WEIGHT_FORMAT_UNSPECIFIED).has_value());
  EXPECT_FALSE(FromProto(v1::SHARD_STATE_UNSPECIFIED).has_value());
  EXPECT_FALSE(FromProto(v1::LEVER_SOURCE_UNSPECIFIED).has_value());
}

}  // namespace
}  // namespace fulcrum::service
