// Who a call is from: certificate, header of a trusted peer, address; and what names become.
// Over real connections: canary_identity_test.cc and tls_test.cc.
// SPDX-License-Identifier: Apache-2.0
#include "service/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace fulcrum::service {
namespace {

using ::testing::HasSubstr;

class IdentityTest : public ::testing::Test {
 protected:
  Peer From(const std::string& address, const std::vector<std::string_view>& header = {},
            const std::vector<std::string>& names = {}) {
    const Identifier identifier(config_, [this](HeaderUse use, const Peer&) { ++told_[use]; });
    Peer peer;
    peer.address = address;
    peer.names = names;
    identifier.Identify(header, peer);
    return peer;
  }
  IdentityConfig config_;
  std::map<HeaderUse, int> told_;
};

TEST_F(IdentityTest, WithoutAHeaderItIsTheCertificateElseTheAddress) {
  EXPECT_EQ(From("ipv4:10.0.0.1:4242").identity, "10.0.0.1");
  EXPECT_EQ(From("ipv6:%5B::1%5D:4242").identity, "::1");
  EXPECT_EQ(From("ipv6:[fd00::7]:1").identity, "fd00::7");
  EXPECT_EQ(From("ipv6:%5Bfe80::1%25eth0%5D:443").identity, "fe80::1%eth0");
  EXPECT_EQ(From("unix:").identity, "unix");
  EXPECT_EQ(From("unix:/run/fulcrum.sock").identity, "unix");
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {}, {"first.test", "cn"}).identity, "first.test");
  // A header that nothing configures is no header.
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {"alice"}).identity, "10.0.0.1");
  EXPECT_TRUE(told_.empty());
}

TEST_F(IdentityTest, ATrustedAddressNamesItsClientAndNobodyElseDoes) {
  config_ = {.header = "x-client", .trusted_peers = {"10.0.0.0/8", "fd00::/16"}};
  const Peer alice = From("ipv4:10.1.2.3:4242", {"alice"});
  EXPECT_EQ(alice.identity, "header:alice");
  EXPECT_EQ(alice.spoken_by, "10.1.2.3");
  EXPECT_EQ(alice.Actor(), "header:alice via 10.1.2.3");
  EXPECT_EQ(From("ipv6:[fd00::1]:1", {" bob "}).identity, "header:bob");
  EXPECT_EQ(From("ipv6:[::ffff:10.9.9.9]:1", {"carol"}).identity, "header:carol");
  EXPECT_EQ(told_[HeaderUse::kUsed], 3);
  EXPECT_EQ(From("ipv4:11.0.0.1:1", {"alice"}).identity, "11.0.0.1");
  EXPECT_EQ(From("ipv6:[fd01::1]:1", {"alice"}).identity, "fd01::1");
  EXPECT_EQ(From("unix:", {"alice"}).identity, "unix");
  EXPECT_EQ(told_[HeaderUse::kUntrusted], 3);
  // A trusted peer without the header is itself.
  const Peer self = From("ipv4:10.1.2.3:4242");
  EXPECT_EQ(self.identity, "10.1.2.3");
  EXPECT_EQ(self.Actor(), "10.1.2.3");
}

TEST_F(IdentityTest, ACertificateGoesBeforeAHeaderUnlessItIsATrustedPeers) {
  config_ = {.header = "x-client", .trusted_peers = {"10.0.0.0/8", "proxy.test"}};
  // From the proxy's network, but with a name of its own.
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {"alice"}, {"mallory.test"}).identity, "mallory.test");
  EXPECT_EQ(told_[HeaderUse::kUntrusted], 1);
  const Peer alice = From("ipv4:192.0.2.1:1", {"alice"}, {"san.test", "proxy.test"});
  EXPECT_EQ(alice.identity, "header:alice");
  EXPECT_EQ(alice.Actor(), "header:alice via san.test");
  EXPECT_EQ(From("ipv4:192.0.2.1:1", {}, {"proxy.test"}).identity, "proxy.test");
  // A name that only looks like the proxy's.
  EXPECT_EQ(From("ipv4:192.0.2.1:1", {"alice"}, {"xproxy.test"}).identity, "xproxy.test");
}

TEST_F(IdentityTest, AUnixSocketIsTrustedByName) {
  config_ = {.header = "x-client", .trusted_peers = {"unix:"}};
  EXPECT_EQ(From("unix:", {"alice"}).identity, "header:alice");
  EXPECT_EQ(From("ipv4:127.0.0.1:1", {"alice"}).identity, "127.0.0.1");
}

TEST_F(IdentityTest, AHeaderThatIsThereTwiceOrEmptyCountsAsNone) {
  config_ = {.header = "x-client", .trusted_peers = {"10.0.0.1"}};
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {"admin", "alice"}).identity, "10.0.0.1");
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {""}).identity, "10.0.0.1");
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {" \t "}).identity, "10.0.0.1");
  EXPECT_EQ(told_[HeaderUse::kInvalid], 3);
}

TEST_F(IdentityTest, AnAuthorityCountsFromTrustedPeersAloneAndIsNoComplaintFromOthers) {
  config_ = {.header = ":authority", .trusted_peers = {"10.0.0.1"}};
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {"tenant-a.nodes"}).identity, "header:tenant-a.nodes");
  EXPECT_EQ(From("ipv4:10.0.0.2:1", {"tenant-a.nodes"}).identity, "10.0.0.2");
  EXPECT_EQ(told_[HeaderUse::kUntrusted], 0);
}

// What one kind of name says cannot be another's.
TEST_F(IdentityTest, KindsOfNamesDoNotMeet) {
  config_ = {.header = "x-client", .trusted_peers = {"10.0.0.1", "proxy.test"}};
  EXPECT_NE(From("ipv4:10.0.0.1:1", {"10.0.0.2"}).identity, From("ipv4:10.0.0.2:1").identity);
  EXPECT_NE(From("ipv4:10.0.0.1:1", {"admin.test"}).identity,
            From("ipv4:10.0.0.3:1", {}, {"admin.test"}).identity);
  EXPECT_EQ(From("ipv4:10.0.0.3:1", {}, {"header:alice"}).identity, "certificate:header:alice");
  EXPECT_EQ(From("ipv4:10.0.0.3:1", {}, {"certificate:header:alice"}).identity,
            "certificate:certificate:header:alice");
}

TEST_F(IdentityTest, NamesAreBoundedPrintableAndStayApart) {
  config_ = {.header = "x-client", .trusted_peers = {"10.0.0.1"}};
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {"a\nb\x1b[31m\xff"}).identity, "header:a\\nb\\x1b[31m\\xff");
  EXPECT_EQ(From("ipv4:10.0.0.1:1", {}, {"M\xc3\xbcller"}).identity, "M\\xc3\\xbcller");
  // An escape that was typed is not one that was made.
  EXPECT_NE(From("ipv4:10.0.0.1:1", {"a\\xff"}).identity,
            From("ipv4:10.0.0.1:1", {"a\xff"}).identity);
  const std::string one = std::string(5000, 'x') + "1", two = std::string(5000, 'x') + "2";
  const std::string long_one = From("ipv4:10.0.0.1:1", {one}).identity;
  EXPECT_EQ(long_one.size(), kMostIdentityBytes);
  EXPECT_NE(long_one, From("ipv4:10.0.0.1:1", {two}).identity);
  EXPECT_EQ(long_one, From("ipv4:10.0.0.1:9", {one}).identity);
  EXPECT_LE(From("ipv4:10.0.0.1:1", {}, {std::string(300, '\x01')}).identity.size(),
            kMostIdentityBytes);
  EXPECT_EQ(From("nonsense").identity, "nonsense");
  EXPECT_EQ(From("").identity, "");
}

TEST(TrustedPeer, AddressesNetworksSocketsAndNames) {
  const auto range = [](const char* text) {
    const auto peer = ParseTrustedPeer(text);
    EXPECT_TRUE(peer.ok()) << text << ": " << peer.status();
    return std::get<AddressRange>(*peer);
  };
  EXPECT_TRUE(range("10.0.0.0/8").Holds(*ParseAddress("10.255.0.1")));
  EXPECT_FALSE(range("10.0.0.0/8").Holds(*ParseAddress("11.0.0.0")));
  EXPECT_TRUE(range("10.64.0.0/10").Holds(*ParseAddress("10.127.255.255")));
  EXPECT_FALSE(range("10.64.0.0/10").Holds(*ParseAddress("10.128.0.0")));
  EXPECT_TRUE(range("10.1.2.3").Holds(*ParseAddress("::ffff:10.1.2.3")));
  EXPECT_FALSE(range("10.1.2.3").Holds(*ParseAddress("10.1.2.4")));
  EXPECT_TRUE(range("fd00::/9").Holds(*ParseAddress("fd7f::1%eth0")));
  EXPECT_FALSE(range("fd00::/9").Holds(*ParseAddress("fd80::1")));
  EXPECT_FALSE(range("::/1").Holds(*ParseAddress("fd80::1")));
  EXPECT_TRUE(std::holds_alternative<UnixPeer>(*ParseTrustedPeer("unix:")));
  for (const char* name : {"proxy.example", "spiffe://a/b", "proxy one"}) {
    const auto peer = ParseTrustedPeer(name);
    ASSERT_TRUE(peer.ok()) << name;
    EXPECT_EQ(std::get<CertificateName>(*peer).name, name);
  }
}

TEST(TrustedPeer, WhatIsMeantAsAnAddressAndIsNoneIsRefused) {
  const auto why = [](const char* text) {
    return std::string(ParseTrustedPeer(text).status().message());
  };
  EXPECT_EQ(why(""), "is empty");
  EXPECT_THAT(why("10.0.0.0/33"), HasSubstr("expected a prefix of 1 to 32 bits"));
  EXPECT_THAT(why("10.0.0.0/-1"), HasSubstr("expected a prefix of 1 to 32 bits"));
  EXPECT_THAT(why("10.0.0.0/x"), HasSubstr("expected a prefix of 1 to 32 bits"));
  EXPECT_THAT(why("fd00::/129"), HasSubstr("expected a prefix of 1 to 128 bits"));
  EXPECT_THAT(why("10.0.0"), HasSubstr("expected an address such as 10.1.2.3"));
  EXPECT_THAT(why("10.0.0.256"), HasSubstr("expected an address such as 10.1.2.3"));
  EXPECT_THAT(why("proxy/8"), HasSubstr("a network such as 10.0.0.0/8"));
  EXPECT_THAT(why("unix:/run/x.sock"), HasSubstr("expected 'unix:'"));
  EXPECT_THAT(why("0.0.0.0/0"), HasSubstr("that is every address"));
  EXPECT_THAT(why("::/0"), HasSubstr("that is every address"));
  EXPECT_THAT(why("10.0.0.1/8"), HasSubstr("bits behind its prefix of 8"));
}

TEST(IdentityHeader, NamesThatTellClientsApart) {
  for (const char* header : {"x-fulcrum-client", "x-client", ":authority", "tenant_id"}) {
    EXPECT_TRUE(CheckIdentityHeader(header).ok()) << header;
  }
  for (const char* header : {"", "X-Client", "x client", "x-client-bin", "grpc-client", ":path",
                             "authorization", "cookie", "x-forwarded-for", "user-agent",
                             "x-fulcrum-call-id", "traceparent", "host", "m\xc3\xbcller", "a\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckIdentityHeader(header))) << header;
  }
  EXPECT_FALSE(CheckIdentityHeader(std::string(65, 'x')).ok());
}

}  // namespace
}  // namespace fulcrum::service
