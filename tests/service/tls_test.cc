// TLS over real sockets: who may connect, rotation while running, and pairs that must not be taken.
// SPDX-License-Identifier: Apache-2.0
#include "service/tls.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "fulcrum/v1/lever_service.grpc.pb.h"
#include "scheduler/lever_store.h"
#include "service/authorization.h"
#include "service/lever_service.h"
#include "service/tls_material.h"
#include "tests/service/support/certificates.h"
#include "tests/service/support/lever_requests.h"
#include "tests/support/fake_backend.h"
#include "tests/support/test_call.h"

namespace fulcrum::service {
namespace {

using test::Certificates;
using ::testing::HasSubstr;

TlsFiles Files(const Certificates& certs, const std::string& name) {
  TlsFiles files;
  files.certificate = certs.Path(name + ".pem");
  files.key = certs.Path(name + ".key");
  files.reload = absl::Hours(1);  // tests say when
  return files;
}

// A node's lever service behind the credentials under test.
class Node {
 public:
  explicit Node(const TlsFiles& files, const IdentityConfig& identity = {})
      : authorizer_(files, identity), store_(clock_), service_(store_, canaries_, authorizer_) {
    auto tls = ServerTls::Make(
        files, [this](const absl::StatusOr<absl::Time>& heard) { heard_.push_back(heard); });
    EXPECT_TRUE(tls.ok()) << tls.status();
    if (!tls.ok()) return;
    tls_ = *std::move(tls);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", tls_->credentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~Node() {
    if (server_ != nullptr) server_->Shutdown();
  }

  // A fresh connection each time: a shared subchannel would keep the certificate it began with.
  grpc::Status Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    bool admin = false, const std::string& header = "",
                    v1::ListLeversResponse* list = nullptr) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetSslTargetNameOverride("localhost");
    auto stub = v1::LeverService::NewStub(
        grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port_), credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!header.empty()) context.AddMetadata("x-client", header);
    if (admin) {
      v1::SetLeversResponse response;
      return stub->SetLevers(&context, test::SetRequest("max_batch_rows", "8"), &response);
    }
    v1::ListLeversResponse ignored;
    return stub->ListLevers(&context, {}, list == nullptr ? &ignored : list);
  }

  int port() const { return port_; }
  ServerTls& tls() { return *tls_; }
  LeverStore& store() { return store_; }
  CanaryControl& canaries() { return canaries_; }
  const std::vector<absl::StatusOr<absl::Time>>& heard() const { return heard_; }

 private:
  const Clock clock_{};
  const Authorizer authorizer_;
  LeverStore store_;
  Observer observer_;
  CanaryControl canaries_{store_, observer_, clock_, nullptr};
  std::vector<absl::StatusOr<absl::Time>> heard_;
  std::unique_ptr<ServerTls> tls_;
  LeverServiceImpl service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

std::shared_ptr<grpc::ChannelCredentials> Trusting(const std::string& ca) {
  return grpc::SslCredentials({.pem_root_certs = ca, .pem_private_key = "", .pem_cert_chain = ""});
}
std::shared_ptr<grpc::ChannelCredentials> As(const Certificates& certs, const std::string& client) {
  return grpc::SslCredentials({.pem_root_certs = certs.Read("ca.pem"),
                               .pem_private_key = certs.Read(client + ".key"),
                               .pem_cert_chain = certs.Read(client + ".pem")});
}

TEST(Tls, OnlyTlsClientsThatTrustTheServerGetThrough) {
  Certificates certs;
  certs.Issue("server");
  certs.NewAuthority("stranger");
  Node node(Files(certs, "server"));
  EXPECT_TRUE(node.Call(Trusting(certs.Read("ca.pem"))).ok());
  EXPECT_FALSE(node.Call(Trusting(certs.Read("stranger.pem"))).ok());
  EXPECT_FALSE(node.Call(grpc::InsecureChannelCredentials()).ok());
}

TEST(Tls, PlainBytesToTheTlsPortCloseThatConnectionOnly) {
  Certificates certs;
  certs.Issue("server");
  Node node(Files(certs, "server"));
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1024, '\xa5'),
                                   std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(node.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    char reply[256];
    while (recv(fd, reply, sizeof(reply), 0) > 0) {
    }  // until the server closes
    close(fd);
    EXPECT_TRUE(node.Call(Trusting(certs.Read("ca.pem"))).ok());
  }
}

TEST(Tls, MutualTlsKnowsClientsByName) {
  Certificates certs;
  certs.NewAuthority("other");
  for (const char* name : {"server", "alice", "bob", "root"}) certs.Issue(name);
  certs.Issue("mallory", "other");
  TlsFiles files = Files(certs, "server");
  files.client_ca = certs.Path("ca.pem");
  files.allowed_clients = {"alice", "root.test"};
  files.admin_clients = {"root.test"};
  Node node(files);
  EXPECT_FALSE(node.Call(Trusting(certs.Read("ca.pem"))).ok());  // no certificate
  EXPECT_FALSE(node.Call(As(certs, "mallory")).ok());            // of another authority
  EXPECT_TRUE(node.Call(As(certs, "alice")).ok());
  EXPECT_EQ(node.Call(As(certs, "bob")).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(node.Call(As(certs, "alice"), true).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(node.store().Snapshot()->epoch, 1u);
  EXPECT_TRUE(node.Call(As(certs, "root"), true).ok());
  ASSERT_EQ(node.store().History().size(), 1u);
  EXPECT_EQ(node.store().History()[0].actor, "root.test");  // the SAN goes before the CN
}

TEST(Tls, NamesOfClientsAreForAdmins) {
  Certificates certs;
  for (const char* name : {"server", "alice", "root"}) certs.Issue(name);
  TlsFiles files = Files(certs, "server");
  files.client_ca = certs.Path("ca.pem");
  files.admin_clients = {"root.test"};
  Node node(files);
  test::FakeBackend backend;
  test::TestCall call({test::MakeShard(backend, "s", 1)}, 4);
  call.client = "bob.test";
  const fulcrum::Call* const calls[] = {&call};
  node.canaries().OnCalls(calls, absl::Now());
  v1::ListLeversResponse list;
  ASSERT_TRUE(node.Call(As(certs, "alice"), false, "", &list).ok());
  EXPECT_EQ(list.traffic().clients(), 1);
  EXPECT_EQ(list.traffic().largest_share(), 1);
  EXPECT_EQ(list.traffic().largest_unit(), "");
  EXPECT_FALSE(list.has_canary());
  ASSERT_TRUE(node.Call(As(certs, "root"), false, "", &list).ok());
  EXPECT_EQ(list.traffic().largest_unit(), "bob.test");
}

// An identity gives no right.
TEST(Tls, AProxysCertificateVouchesForNamesAndNamesGiveNoRights) {
  Certificates certs;
  for (const char* name : {"server", "proxy", "root"}) certs.Issue(name);
  TlsFiles files = Files(certs, "server");
  files.client_ca = certs.Path("ca.pem");
  files.admin_clients = {"root.test"};
  const IdentityConfig identity{.header = "x-client", .trusted_peers = {"proxy.test"}};
  {
    Node node(files, identity);
    EXPECT_EQ(node.Call(As(certs, "proxy"), true, "root.test").error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
    // Not a trusted peer: what it says of itself is ignored.
    ASSERT_TRUE(node.Call(As(certs, "root"), true, "alice").ok());
    EXPECT_EQ(node.store().History().back().actor, "root.test");
  }
  files.admin_clients = {"proxy"};
  Node node(files, identity);
  ASSERT_TRUE(node.Call(As(certs, "proxy"), true, "alice").ok());
  EXPECT_EQ(node.store().History().back().actor, "header:alice via proxy.test");
}

TEST(Tls, NewHandshakesSeeANewPairWithoutARestart) {
  Certificates certs;
  certs.NewAuthority("ca2");
  certs.Issue("server", "ca", 10);
  certs.Issue("next", "ca2", 20);
  Node node(Files(certs, "server"));
  const absl::Time before = node.tls().expiry();
  EXPECT_TRUE(node.Call(Trusting(certs.Read("ca.pem"))).ok());
  EXPECT_FALSE(node.Call(Trusting(certs.Read("ca2.pem"))).ok());
  EXPECT_FALSE(node.tls().Reload());  // nothing new
  EXPECT_TRUE(node.heard().empty());

  certs.Copy("next.pem", "server.pem");
  EXPECT_FALSE(node.tls().Reload());  // half of a rotation
  certs.Copy("next.key", "server.key");
  EXPECT_TRUE(node.tls().Reload());
  EXPECT_GT(node.tls().expiry() - before, absl::Hours(239));
  ASSERT_EQ(node.heard().size(), 2u);
  EXPECT_FALSE(node.heard()[0].ok());
  EXPECT_TRUE(node.heard()[1].ok());

  // gRPC looks at the pair once a second; handshakes before that end on the old one.
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  bool seen = false;
  while (!seen && absl::Now() < give_up) seen = node.Call(Trusting(certs.Read("ca2.pem"))).ok();
  EXPECT_TRUE(seen);
  EXPECT_FALSE(node.Call(Trusting(certs.Read("ca.pem"))).ok());
}

TEST(Tls, ABadNewPairKeepsTheOldOne) {
  Certificates certs;
  certs.Issue("server");
  certs.Issue("other");
  certs.Issue("good");
  Node node(Files(certs, "server"));
  const auto call = [&] { return node.Call(Trusting(certs.Read("ca.pem"))).ok(); };

  certs.Copy("other.key", "server.key");  // a key of another certificate
  EXPECT_FALSE(node.tls().Reload());
  EXPECT_FALSE(node.tls().Reload());  // said once
  ASSERT_EQ(node.heard().size(), 1u);
  EXPECT_THAT(std::string(node.heard()[0].status().message()), HasSubstr("is not the key of"));
  EXPECT_TRUE(call());

  certs.dir().Write("server.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  EXPECT_FALSE(node.tls().Reload());
  std::filesystem::remove(certs.Path("server.pem"));
  EXPECT_FALSE(node.tls().Reload());
  EXPECT_EQ(node.heard().size(), 3u);
  EXPECT_TRUE(call());

  certs.Copy("good.pem", "server.pem");
  certs.Copy("good.key", "server.key");
  EXPECT_TRUE(node.tls().Reload());
  EXPECT_TRUE(call());
}

TEST(Tls, WithoutTlsCredentialsAreInsecureAndNeverExpire) {
  Node node(TlsFiles{});
  EXPECT_TRUE(node.Call(grpc::InsecureChannelCredentials(), true).ok());
  EXPECT_EQ(node.tls().expiry(), absl::InfiniteFuture());
  EXPECT_FALSE(node.tls().Reload());
  ASSERT_EQ(node.store().History().size(), 1u);
  EXPECT_EQ(node.store().History()[0].actor, "127.0.0.1");
}

TEST(TlsMaterial, RefusesWhatCannotServe) {
  Certificates certs;
  certs.Issue("a");
  certs.Issue("b");
  TlsFiles files = Files(certs, "a");
  ASSERT_TRUE(ReadTlsMaterial(files).ok());
  EXPECT_GT(ReadTlsMaterial(files)->expiry, absl::Now() + absl::Hours(24 * 29));

  const auto error = [&](const TlsFiles& f) {
    return std::string(ReadTlsMaterial(f).status().message());
  };
  files.key = certs.Path("b.key");
  EXPECT_THAT(error(files), HasSubstr("is not the key of the first certificate"));
  files.key = certs.Path("a.pem");
  EXPECT_THAT(error(files), HasSubstr("holds no private key"));
  files.key = certs.Path("absent");
  EXPECT_TRUE(absl::IsNotFound(ReadTlsMaterial(files).status()));
  files = Files(certs, "a");
  files.certificate = certs.Path("a.key");
  EXPECT_THAT(error(files), HasSubstr("holds no PEM certificate"));
  files.certificate = certs.dir().path();
  EXPECT_FALSE(ReadTlsMaterial(files).ok());
  files = Files(certs, "a");
  files.client_ca = certs.dir().Write("empty", "");
  EXPECT_THAT(error(files), HasSubstr("holds no PEM certificate"));
  files.certificate = certs.dir().Write("big", std::string(2 << 20, 'x'));
  EXPECT_THAT(error(files), HasSubstr("larger than"));
  // An encrypted key must not ask a terminal for its passphrase.
  ASSERT_EQ(std::system(("openssl ec -aes256 -passout pass:secret -in " + certs.Path("a.key") +
                         " -out " + certs.Path("enc.key") + " 2>/dev/null")
                            .c_str()),
            0);
  files = Files(certs, "a");
  files.key = certs.Path("enc.key");
  EXPECT_THAT(error(files), HasSubstr("encrypted"));
}

}  // namespace
}  // namespace fulcrum::service
