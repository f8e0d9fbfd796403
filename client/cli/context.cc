// Connecting, and errors that say what to do.
// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <ostream>

#include "client/cli/command.h"
#include "client/cpp/client.h"
#include "client/cpp/status.h"

namespace fulcrum::cli {
namespace {

std::string Advice(const absl::Status& status, const Globals& globals, const char* look_at) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      if (client::NodeSaid(status)) return "";
      return "is fulcrumd running at " + globals.target +
             ", and does --tls-ca fit how it listens? `fulcrum health` checks it";
    case absl::StatusCode::kUnauthenticated:
      return "the node asks for a client certificate: --tls-cert and --tls-key";
    case absl::StatusCode::kPermissionDenied:
      return globals.tls_cert.empty()
                 ? ""
                 : "the node's configuration may not let this certificate do that";
    case absl::StatusCode::kAborted:
      return "levers changed meanwhile: `fulcrum levers list` and `history` show what is live, and "
             "who set it";
    case absl::StatusCode::kDeadlineExceeded:
      return "raise --timeout, or see `fulcrum info` and the node's metrics for its load";
    case absl::StatusCode::kUnimplemented:
      return "the node is of another version: `fulcrum info`";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return look_at;
    default:
      return "";
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<client::Client>> Context::Connect(int channels) const {
  client::ClientOptions options;
  options.channels = channels;
  options.max_message_bytes = std::numeric_limits<int>::max();  // the node's limit is the one
  if (!globals_.tls_ca.empty() || !globals_.tls_cert.empty() || !globals_.tls_key.empty()) {
    options.tls = client::TlsOptions{
        .ca_file = globals_.tls_ca, .cert_file = globals_.tls_cert, .key_file = globals_.tls_key};
  }
  return client::Client::Connect(globals_.target, options);
}

client::CallOptions Context::Call() const {
  client::CallOptions options;
  if (globals_.timeout_s > 0) options.timeout = absl::Seconds(globals_.timeout_s);
  return options;
}

int Context::NodeError(const absl::Status& status, const char* look_at) const {
  err_ << "fulcrum: " << globals_.target << ": " << client::Describe(status) << "\n";
  if (const std::string advice = Advice(status, globals_, look_at); !advice.empty()) {
    err_ << "  " << advice << "\n";
  }
  return kFailed;
}

int Context::InputError(const absl::Status& status) const {
  return InputError(client::Describe(status));
}

int Context::InputError(const std::string& message) const {
  err_ << "fulcrum: " << message << "\n";
  return kBadInput;
}

}  // namespace fulcrum::cli
