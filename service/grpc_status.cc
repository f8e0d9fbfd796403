// Details as payloads of a status, and their way onto the wire.
// SPDX-License-Identifier: Apache-2.0
#include "service/grpc_status.h"

#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"

namespace fulcrum::service {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";

std::string Utf8(absl::string_view text) {
  // grpc-message is percent-encoded, but google.rpc.Status.message is a proto3 string: bytes that
  // are not UTF-8 (a path, a name from the wire) must not make the reply unparsable.
  std::string out;
  out.reserve(text.size());
  for (char c : text) out.push_back(static_cast<unsigned char>(c) < 0x80 ? c : '?');
  return out;
}

}  // namespace

absl::Status WithDetail(absl::Status status, const google::protobuf::Message& detail) {
  status.SetPayload(absl::StrCat(kTypePrefix, detail.GetDescriptor()->full_name()),
                    absl::Cord(detail.SerializeAsString()));
  return status;
}

absl::Status InvalidField(std::string_view field, std::string_view description) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  return WithDetail(absl::InvalidArgumentError(absl::StrFormat("%s: %s", field, description)),
                    bad);
}

absl::Status WithPrecondition(absl::Status status, std::string_view type,
                              std::string_view subject) {
  google::rpc::PreconditionFailure failure;
  auto* violation = failure.add_violations();
  violation->set_type(std::string(type));
  violation->set_subject(std::string(subject));
  violation->set_description(std::string(status.message()));
  return WithDetail(std::move(status), failure);
}

absl::Status WithResource(absl::Status status, std::string_view type, std::string_view name) {
  google::rpc::ResourceInfo info;
  info.set_resource_type(std::string(type));
  info.set_resource_name(std::string(name));
  info.set_description(std::string(status.message()));
  return WithDetail(std::move(status), info);
}

absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo retry;
  const int64_t nanos = absl::ToInt64Nanoseconds(delay);
  retry.mutable_retry_delay()->set_seconds(nanos / 1000000000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % 1000000000));
  return WithDetail(std::move(status), retry);
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(Utf8(status.message()));
  status.ForEachPayload([&wire](absl::string_view type_url, const absl::Cord& payload) {
    google::protobuf::Any* any = wire.add_details();
    any->set_type_url(std::string(type_url));
    any->set_value(std::string(payload));
  });
  return wire;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status wire = ToRpcStatus(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), wire.message(),
                      wire.details_size() == 0 ? std::string() : wire.SerializeAsString());
}

}  // namespace fulcrum::service
