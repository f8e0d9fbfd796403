// Details as payloads of a status, and their way onto the wire.
// SPDX-License-Identifier: Apache-2.0
#include "service/grpc_status.h"

#include <algorithm>
#include <array>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fulcrum::service {
namespace {

constexpr size_t kMaxMessage = 1024;  // trailers share an 8 KiB block with the details
constexpr size_t kMaxQuoted = 128;

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

constexpr absl::string_view kTypePrefix = "type.googleapis.com/";

// Proto3 strings must be UTF-8, what was cut may end inside a character, and a terminal obeys what
// a name from outside may hold: plain ASCII, everything else as \xNN.
std::string Printable(absl::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxMessage)) {
    if (c >= 0x20 && c < 0x7f) {
      out.push_back(c);
    } else {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    }
  }
  if (out.size() > kMaxMessage || text.size() > kMaxMessage) {
    out.resize(std::min(out.size(), kMaxMessage));
    out += "...";
  }
  return out;
}
std::string Printable(std::string_view text) { return Printable(View(text)); }

}  // namespace

absl::Status WithDetail(absl::Status status, const google::protobuf::Message& detail) {
  status.SetPayload(absl::StrCat(kTypePrefix, detail.GetTypeName()),
                    absl::Cord(detail.SerializeAsString()));
  return status;
}

absl::Status InvalidField(std::string_view field, std::string_view description) {
  google::rpc::BadRequest detail;
  auto* violation = detail.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(Printable(description));
  return WithDetail(absl::InvalidArgumentError(absl::StrCat(View(field), ": ", View(description))),
                    detail);
}

absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo detail;
  absl::Duration rest;
  detail.mutable_retry_delay()->set_seconds(absl::IDivDuration(delay, absl::Seconds(1), &rest));
  detail.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return WithDetail(std::move(status), detail);
}

absl::Status WithResource(absl::Status status, std::string_view type, std::string_view name) {
  google::rpc::ResourceInfo detail;
  detail.set_resource_type(std::string(type));
  detail.set_resource_name(Printable(name));
  detail.set_description(Printable(status.message()));
  return WithDetail(std::move(status), detail);
}

absl::Status WithPrecondition(absl::Status status, std::string_view type,
                              std::string_view subject) {
  google::rpc::PreconditionFailure detail;
  auto* violation = detail.add_violations();
  violation->set_type(std::string(type));
  violation->set_subject(Printable(subject));
  violation->set_description(Printable(status.message()));
  return WithDetail(std::move(status), detail);
}

absl::Status WithInfo(absl::Status status, std::string_view reason,
                      const std::vector<std::pair<std::string, std::string>>& metadata) {
  google::rpc::ErrorInfo detail;
  detail.set_reason(std::string(reason));
  detail.set_domain("fulcrum");
  for (const auto& [key, value] : metadata) (*detail.mutable_metadata())[key] = value;
  return WithDetail(std::move(status), detail);
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status out;
  out.set_code(static_cast<int>(status.code()));
  out.set_message(Printable(status.message()));
  status.ForEachPayload([&out](absl::string_view url, const absl::Cord& value) {
    auto* any = out.add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(value));
  });
  return out;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status wire = ToRpcStatus(status);
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (wire.details().empty()) return {code, wire.message()};
  return {code, wire.message(), wire.SerializeAsString()};
}

std::string Quoted(std::string_view name) {
  const bool cut = name.size() > kMaxQuoted;
  return absl::StrCat("\"", absl::CHexEscape(View(name.substr(0, kMaxQuoted))),
                      cut ? "...\"" : "\"");
}

std::string_view CodeName(absl::StatusCode code) {
  static constexpr std::array<std::string_view, kStatusCodes> kNames = {"OK",
                                                                        "CANCELLED",
                                                                        "UNKNOWN",
                                                                        "INVALID_ARGUMENT",
                                                                        "DEADLINE_EXCEEDED",
                                                                        "NOT_FOUND",
                                                                        "ALREADY_EXISTS",
                                                                        "PERMISSION_DENIED",
                                                                        "RESOURCE_EXHAUSTED",
                                                                        "FAILED_PRECONDITION",
                                                                        "ABORTED",
                                                                        "OUT_OF_RANGE",
                                                                        "UNIMPLEMENTED",
                                                                        "INTERNAL",
                                                                        "UNAVAILABLE",
                                                                        "DATA_LOSS",
                                                                        "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : kNames[2];
}

}  // namespace fulcrum::service
