// Decoding of google.rpc details from and into absl::Status payloads, one payload per detail.
// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/status.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/any.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fulcrum::client {
namespace {

constexpr char kNodeSaid[] = "fulcrum/node_said";  // a payload's type

absl::StatusCode CodeOf(int code) {
  return code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated)
             ? static_cast<absl::StatusCode>(code)
             : absl::StatusCode::kUnknown;
}

template <typename Message>
bool Unpack(absl::string_view type_url, const absl::Cord& payload, Message* out) {
  const std::string& name = Message::descriptor()->full_name();
  const size_t slash = type_url.rfind('/');
  if (slash == absl::string_view::npos || type_url.substr(slash + 1) != name) return false;
  return out->ParseFromString(std::string(payload));
}

void AddDetail(absl::string_view type_url, const absl::Cord& payload, ErrorDetails* out) {
  google::rpc::RetryInfo retry;
  google::rpc::BadRequest bad;
  google::rpc::PreconditionFailure precondition;
  google::rpc::ResourceInfo resource;
  google::rpc::ErrorInfo info;
  if (Unpack(type_url, payload, &retry)) {
    out->retry_delay = absl::Seconds(retry.retry_delay().seconds()) +
                       absl::Nanoseconds(retry.retry_delay().nanos());
  } else if (Unpack(type_url, payload, &bad)) {
    for (const auto& v : bad.field_violations()) {
      out->field_violations.push_back({v.field(), v.description()});
    }
  } else if (Unpack(type_url, payload, &precondition)) {
    for (const auto& v : precondition.violations()) {
      out->precondition_violations.push_back({v.type(), v.subject(), v.description()});
    }
  } else if (Unpack(type_url, payload, &resource)) {
    out->resource_type = resource.resource_type();
    out->resource_name = resource.resource_name();
    out->resource_description = resource.description();
  } else if (Unpack(type_url, payload, &info)) {
    out->reason = info.reason();
    out->metadata.insert(info.metadata().begin(), info.metadata().end());
  }
}

}  // namespace

bool ErrorDetails::empty() const {
  return !retry_delay && field_violations.empty() && precondition_violations.empty() &&
         resource_name.empty() && resource_type.empty() && reason.empty() && metadata.empty();
}

absl::Status FromRpcStatus(const google::rpc::Status& status) {
  absl::Status out(CodeOf(status.code()), status.message());
  for (const google::protobuf::Any& detail : status.details()) {
    out.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  out.SetPayload(kNodeSaid, absl::Cord());
  return out;
}

absl::Status FromGrpc(const grpc::Status& status) {
  absl::Status out(CodeOf(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (out.ok() || status.error_details().empty() ||
      !details.ParseFromString(status.error_details())) {
    return out;
  }
  for (const google::protobuf::Any& detail : details.details()) {
    out.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return out;
}

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  absl::Status out = FromGrpc(status);
  // Codes do not tell: a node that drains and a port where nobody listens are both UNAVAILABLE.
  if (!out.ok() && absl::StrContains(context.debug_error_string(), "Error received from peer")) {
    out.SetPayload(kNodeSaid, absl::Cord());
  }
  return out;
}

bool NodeSaid(const absl::Status& status) { return status.GetPayload(kNodeSaid).has_value(); }

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details;
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& payload) {
    AddDetail(type_url, payload, &details);
  });
  return details;
}

std::string Describe(const absl::Status& status) {
  std::string out = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  const ErrorDetails details = DetailsOf(status);
  const auto said = [&](const std::string& text) {
    return absl::StrContains(status.message(), text);
  };
  const auto unless_said = [&](const std::string& text) {
    return said(text) ? std::string() : absl::StrCat(": ", text);
  };
  for (const FieldViolation& v : details.field_violations) {
    if (said(v.field) && said(v.description)) continue;
    absl::StrAppend(&out, "\n  field ", v.field, unless_said(v.description));
  }
  for (const PreconditionViolation& v : details.precondition_violations) {
    absl::StrAppend(&out, "\n  ", v.type, " ", v.subject, unless_said(v.description));
  }
  if (!said(details.resource_name) || !said(details.resource_description)) {
    absl::StrAppend(&out, "\n  ", details.resource_type, " ", details.resource_name,
                    unless_said(details.resource_description));
  }
  if (!details.reason.empty()) absl::StrAppend(&out, "\n  reason ", details.reason);
  for (const auto& [key, value] : details.metadata) {
    absl::StrAppend(&out, "\n  ", key, " = ", value);
  }
  if (details.retry_delay) {
    absl::StrAppend(&out, "\n  a retry may succeed after ",
                    absl::FormatDuration(*details.retry_delay));
  }
  return out;
}

}  // namespace fulcrum::client
