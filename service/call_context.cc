// Reading, checking and echoing of a call's metadata.
// SPDX-License-Identifier: Apache-2.0
#include "service/call_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "service/grpc_status.h"

namespace fulcrum::service {
namespace {

constexpr size_t kMaxTracestate = 512;

bool IsPrintable(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

bool IsHex(std::string_view s) {
  return std::all_of(s.begin(), s.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return c == '0'; });
}

std::string_view Find(const grpc::ServerContextBase& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(key);
  if (it == metadata.end()) return {};
  return {it->second.data(), it->second.size()};
}

}  // namespace

bool IsTraceparent(std::string_view v) {
  // 00-0123456789abcdef0123456789abcdef-0123456789abcdef-01
  if (v.size() < 55 || v[2] != '-' || v[35] != '-' || v[52] != '-') return false;
  const std::string_view version = v.substr(0, 2), trace = v.substr(3, 32),
                         parent = v.substr(36, 16), flags = v.substr(53, 2);
  if (!IsHex(version) || !IsHex(trace) || !IsHex(parent) || !IsHex(flags)) return false;
  if (version == "ff" || IsZero(trace) || IsZero(parent)) return false;
  if (version == "00") return v.size() == 55;
  // Later versions may append fields after another dash.
  return v.size() <= kMaxTracestate && (v.size() == 55 || v[55] == '-') && IsPrintable(v);
}

absl::Status ReadCallContext(const grpc::ServerContextBase& context, CallContext* out) {
  *out = CallContext();
  const std::string_view id = Find(context, kCallIdKey);
  if (id.size() > kMaxCallIdBytes) {
    return InvalidField(kCallIdKey, absl::StrCat("expected at most ", kMaxCallIdBytes,
                                                 " bytes of metadata, got ", id.size()));
  }
  out->id = std::string(id);
  const std::string_view parent = Find(context, "traceparent");
  if (IsTraceparent(parent)) {
    out->traceparent = std::string(parent);
    const std::string_view state = Find(context, "tracestate");
    if (state.size() <= kMaxTracestate && IsPrintable(state)) out->tracestate = std::string(state);
  }
  return absl::OkStatus();
}

std::string ChooseCallId(std::string_view in_request, std::string_view in_metadata,
                         std::string_view node, uint64_t serial) {
  if (!in_request.empty()) return std::string(in_request);
  if (!in_metadata.empty()) return std::string(in_metadata);
  return absl::StrCat(absl::string_view(node.data(), node.size()), "-", serial);
}

void EchoCallContext(std::string_view id, const CallContext& call,
                     grpc::ServerContextBase* context) {
  if (!id.empty() && id.size() <= kMaxCallIdBytes && IsPrintable(id)) {
    context->AddInitialMetadata(kCallIdKey, std::string(id));
  }
  if (!call.traceparent.empty()) context->AddInitialMetadata("traceparent", call.traceparent);
  if (!call.tracestate.empty()) context->AddInitialMetadata("tracestate", call.tracestate);
}

}  // namespace fulcrum::service
