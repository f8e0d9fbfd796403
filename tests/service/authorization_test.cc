// The lists that bound what a peer may do. Peers of real connections are in tls_test.cc.
// SPDX-License-Identifier: Apache-2.0
#include "service/authorization.h"

#include <gtest/gtest.h>

namespace fulcrum::service {
namespace {

Peer Named(const std::vector<std::string>& names) {
  // What a trusted proxy said of its client, which gives no right.
  return {.identity = "header:b", .names = names, .address = "ipv4:10.0.0.1:1"};
}
const Peer kUnnamed{.identity = "header:b", .names = {}, .address = "ipv4:10.0.0.1:1"};

TEST(Authorization, WithoutClientCertificatesWhoConnectsMayCall) {
  const Authorizer authorizer{TlsFiles{}};
  EXPECT_TRUE(authorizer.CheckCaller(kUnnamed).ok());
  EXPECT_TRUE(authorizer.CheckAdmin(kUnnamed).ok());
}

TEST(Authorization, ListsAndTheirDefaults) {
  TlsFiles tls;
  tls.client_ca = "ca.pem";
  const Authorizer any(tls);
  EXPECT_TRUE(absl::IsUnauthenticated(any.CheckCaller(kUnnamed)));
  EXPECT_TRUE(absl::IsUnauthenticated(any.CheckAdmin(kUnnamed)));
  EXPECT_TRUE(any.CheckCaller(Named({"x"})).ok());
  EXPECT_TRUE(any.CheckAdmin(Named({"x"})).ok());

  tls.allowed_clients = {"a", "b"};
  const Authorizer listed(tls);
  EXPECT_TRUE(listed.CheckAdmin(Named({"b"})).ok());
  EXPECT_TRUE(listed.CheckCaller(Named({"z", "a"})).ok());  // any name of the certificate
  EXPECT_TRUE(absl::IsPermissionDenied(listed.CheckCaller(Named({"ab"}))));

  tls.admin_clients = {"b"};
  const Authorizer admins(tls);
  EXPECT_TRUE(admins.CheckCaller(Named({"a"})).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(admins.CheckAdmin(Named({"a"}))));
  EXPECT_EQ(std::string(admins.CheckAdmin(Named({"a"})).message()).rfind("'a' is not in", 0), 0u);
  EXPECT_TRUE(admins.CheckAdmin(Named({"b"})).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(admins.CheckAdmin(Named({"c"}))));
}

}  // namespace
}  // namespace fulcrum::service
