# A node whose certificate is replaced while it serves: new connections see the new one, calls go on,
# /metrics says when it ends, and a pair that cannot serve changes nothing. Case P155.
# SPDX-License-Identifier: Apache-2.0
import datetime
import pathlib
import socket
import ssl
import tempfile
import time
import unittest

import grpc
from load import Load
from node import Node, PATIENCE, SMALL, scaled
from test_connections import self_signed

OK = grpc.StatusCode.OK
EXPIRY = "fulcrum_tls_certificate_expiry_seconds"


class Trusting:
    """A node whose channels are TLS and trust these certificates."""

    def __init__(self, node, *certificates):
        roots = b"".join(c.read_bytes() for c in certificates)
        self.node, self.credentials = node, grpc.ssl_channel_credentials(roots)

    def channel(self):
        return self.node.channel(credentials=self.credentials)


def handshake(node, certificate):
    """When the certificate ends that a new connection is shown, once it is one that this client
    trusts: gRPC looks for a new pair once a second."""
    context = ssl.create_default_context(cafile=certificate)
    context.set_alpn_protocols(["h2"])
    host, port = node.address.rsplit(":", 1)
    give_up = time.monotonic() + PATIENCE
    while True:
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as raw:
            try:
                with context.wrap_socket(raw, server_hostname=host) as secure:
                    return ssl.cert_time_to_seconds(secure.getpeercert()["notAfter"])
            except (ssl.SSLError, OSError):
                if time.monotonic() > give_up:
                    raise


class Rotation(unittest.TestCase):
    def make(self, name, days):
        folder = self.folder / name
        folder.mkdir()
        return self_signed(folder, days)

    def install(self, key, certificate):
        for source, name in ((key, "key.pem"), (certificate, "cert.pem")):
            fresh = self.folder / "fresh"
            fresh.write_bytes(source.read_bytes())
            fresh.rename(self.folder / name)

    def test_a_new_pair_is_served_without_a_failed_call_and_a_bad_one_is_not(self):  # P155
        with tempfile.TemporaryDirectory() as name:
            self.folder = pathlib.Path(name)
            pairs = [self.make(f"pair{i}", days=2 + i) for i in range(scaled(3, 10))]
            self.install(*pairs[0])
            config = (f'tls {{ certificate: "{name}/cert.pem" key: "{name}/key.pem" '
                      'reload_seconds: 1 }\n' + SMALL)
            with Node(config) as node:
                self.assertEqual(node.metric(EXPIRY), handshake(node, pairs[0][1]))
                everything = Trusting(node, *(certificate for _, certificate in pairs))
                with Load(everything, clients=3) as load:
                    for count, (key, certificate) in enumerate(pairs[1:], start=1):
                        load.wait_for(50 * count)
                        self.install(key, certificate)
                        end = handshake(node, certificate)
                        day = datetime.datetime.fromtimestamp(end).isoformat()
                        node.wait_line(f'event="certificate reloaded" expiry={day}')
                        self.assertEqual(node.metric(EXPIRY), end)
                    self.install(pairs[0][0], pairs[-1][1])  # a key of another certificate
                    node.wait_line('event="new certificate refused.*is not the key of')
                    self.assertEqual(handshake(node, pairs[-1][1]), end)
                    self.assertEqual(node.metric(EXPIRY), end)
                    load.wait_for(50 * len(pairs))
                self.assertEqual(set(load.codes), {OK}, load.details[:3])


if __name__ == "__main__":
    unittest.main()
