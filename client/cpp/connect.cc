// Client::Connect: options checked, credentials read, channels made.
// SPDX-License-Identifier: Apache-2.0
#include <grpc/grpc.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/cpp/client_core.h"
#include "fulcrum/v1/shard_service.grpc.pb.h"
#include "proto/unix_target.h"

namespace fulcrum::client {
namespace {

absl::StatusOr<std::string> ReadPem(const std::string& path, const char* what) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("TLS ", what, " file ", path, ": cannot be read"));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const ClientOptions& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  const TlsOptions& tls = *options.tls;
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return absl::InvalidArgumentError(
        "TLS: a client certificate needs its key and the key its certificate; give both or none");
  }
  grpc::SslCredentialsOptions ssl;
  if (!tls.ca_file.empty()) {
    absl::StatusOr<std::string> ca = ReadPem(tls.ca_file, "CA");
    if (!ca.ok()) return ca.status();
    ssl.pem_root_certs = *std::move(ca);
  }
  if (!tls.cert_file.empty()) {
    absl::StatusOr<std::string> cert = ReadPem(tls.cert_file, "certificate");
    if (!cert.ok()) return cert.status();
    absl::StatusOr<std::string> key = ReadPem(tls.key_file, "key");
    if (!key.ok()) return key.status();
    ssl.pem_cert_chain = *std::move(cert);
    ssl.pem_private_key = *std::move(key);
  }
  return grpc::SslCredentials(ssl);
}

// Watches the health of every address of the target.
constexpr char kBalanced[] = R"({
  "loadBalancingConfig": [{"round_robin": {}}],
  "healthCheckConfig": {"serviceName": "fulcrum.v1.ProjectionService"}
})";

grpc::ChannelArguments Arguments(const ClientOptions& options, int index) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(options.max_message_bytes);
  args.SetMaxSendMessageSize(options.max_message_bytes);
  args.SetUserAgentPrefix("fulcrum-client/" FULCRUM_VERSION);
  // Channels with equal arguments share one connection through a process-wide pool; each of ours is
  // meant to be its own.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt("fulcrum.connection", index);
  // retry.h alone decides about repeats: a service config from DNS must not add its own.
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  if (options.balance) args.SetServiceConfigJSON(kBalanced);
  // A node that restarts is found again soon.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  // A peer that vanished without a FIN is noticed although no call is waiting for the kernel.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  return args;
}

// gRPC stops its threads when the last object of it goes. After large messages that can take ten
// seconds (its poller sleeps once more), and the stop of its callback queue, which goes with the
// last channel that used it, was seen to free the queue twice (1.51, under AddressSanitizer). One
// channel that stays, with a call that uses the queue and fails at once for want of credentials,
// prevents both.
void KeepGrpcUp() {
  struct Kept {
    std::shared_ptr<grpc::Channel> channel = grpc::CreateChannel("none", nullptr);
    std::unique_ptr<v1::ShardService::Stub> stub = v1::ShardService::NewStub(channel);
    grpc::ClientContext context;
    v1::GetNodeInfoRequest request;
    v1::NodeInfo reply;
  };
  [[maybe_unused]] static const Kept* const kept = [] {
    grpc_init();
    auto* const k = new Kept;
    k->stub->async()->GetNodeInfo(&k->context, &k->request, &k->reply, [](const grpc::Status&) {});
    return k;
  }();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target,
                                                        const ClientOptions& options) {
  if (target.empty()) {
    return absl::InvalidArgumentError("target: empty; expected host:port or unix:PATH");
  }
  if (options.channels < 1 || options.channels > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("channels: expected 1..64, got ", options.channels));
  }
  if (options.max_message_bytes < 1 || options.retry.max_attempts < 1 ||
      options.default_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "client options: max_message_bytes, max_attempts and default_timeout must be positive");
  }
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = Credentials(options);
  if (!credentials.ok()) return credentials.status();
  KeepGrpcUp();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.channels; ++i) {
    channels.push_back(
        grpc::CreateCustomChannel(GrpcTarget(target), *credentials, Arguments(options, i)));
  }
  return std::unique_ptr<Client>(
      new Client(std::make_shared<Core>(target, options, std::move(channels))));
}

}  // namespace fulcrum::client
