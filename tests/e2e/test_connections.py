# Clients that die, stay silent or speak something else. Cases P012, P018, P023, P024, P062.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc
from node import (HEAD, Node, PATIENCE, SMALL, code_of, project, project_future, request,
                  scaled, stream)
from proxy import HalfwayProxy

OK = grpc.StatusCode.OK


def talk(address, data, use_tls=False):
    """Sends bytes and reads until the node closes; what came back."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as raw:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        received = bytearray()
        try:
            while chunk := raw.recv(65536):
                received += chunk
        except OSError:
            pass  # a reset is an answer too
        return bytes(received)


def client_hello():
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing,
                                                              server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def self_signed(folder, days=2):
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate,
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-days", str(days)], check=True, capture_output=True)
    return key, certificate


class Connections(unittest.TestCase):
    def settle(self, node):
        """Calls are cleaned up by the time another call has gone through and none is in flight."""
        channel = node.channel()
        for _ in range(2000):
            self.assertEqual(code_of(project, channel, request()), OK)
            if (node.metric("fulcrum_inflight_calls") == 0 and node.metric("fulcrum_queue_rows") == 0
                    and node.metric("fulcrum_queue_bytes") == 0):
                return
        self.fail(f"calls left in flight: {node.metric('fulcrum_inflight_calls')}")

    def test_stray_bytes_do_not_disturb_the_plain_port(self):  # P024
        with Node() as node:
            for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 4, client_hello(),
                         b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64, b"\0"):
                talk(node.address, data)
                self.assertEqual(code_of(project, node.channel(), request()), OK)

    def test_plain_bytes_do_not_disturb_the_tls_port(self):  # P024
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = self_signed(pathlib.Path(folder))
            config = f'tls {{ certificate: "{certificate}" key: "{key}" }}\n' + SMALL
            with Node(config) as node:
                trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
                for data in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                             os.urandom(1024)):
                    talk(node.address, data)
                    channel = node.channel(credentials=trusted)
                    self.assertEqual(code_of(project, channel, request()), OK)
                self.assertEqual(code_of(project, node.channel(), request()),
                                 grpc.StatusCode.UNAVAILABLE)  # a client without TLS

    def test_clients_that_die_in_mid_request(self):  # P023
        with Node("limits { max_prefill_rows: 2048 }\n" + SMALL) as node:
            message = request()
            message.rows, message.step = 1024, 2
            message.activations = bytes(1024 * 512 * 2)  # 1 MiB
            for _ in range(scaled(25, 500)):
                proxy = HalfwayProxy(node.address, limit=512 << 10)
                channel = grpc.insecure_channel(proxy.address)
                call = project_future(channel, message)
                self.assertTrue(proxy.held.wait(PATIENCE))
                proxy.reset()
                self.assertNotEqual(call.code(), OK)
                channel.close()
            self.settle(node)

    def test_a_killed_client_process_leaves_nothing_behind(self):  # P018, P023
        script = ("import sys; sys.path.insert(0, sys.argv[2])\n"
                  "import grpc, node\n"
                  "channel = grpc.insecure_channel(sys.argv[1])\n"
                  "node.project(channel, node.request()); print('called', flush=True)\n"
                  "calls = [node.project_future(channel, node.request(rows=4)) for _ in range(64)]\n"
                  "sys.stdin.read()\n")
        here = str(pathlib.Path(__file__).parent)
        with Node() as node:
            for _ in range(scaled(5, 100)):
                client = subprocess.Popen([sys.executable, "-c", script, node.address, here],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                self.assertEqual(client.stdout.readline(), "called\n")
                client.kill()
                client.wait()
                client.stdin.close()
                client.stdout.close()
            self.settle(node)

    def test_connections_do_not_add_up(self):  # P018, P062
        with Node() as node:
            def cycle(count):
                for _ in range(count):
                    channel = node.channel()
                    self.assertEqual(code_of(project, channel, request()), OK)
                    channel.close()
                return node.resident_bytes()
            before = cycle(scaled(150, 500))
            after = cycle(scaled(150, 1000))
            # Allocators round up; what a connection kept would show as megabytes.
            self.assertLess(after - before, 4 << 20, f"{before} -> {after}")
            self.settle(node)

    def test_an_idle_client_does_not_hold_up_others(self):  # P012
        with Node() as node:
            release = threading.Event()

            def silent():
                release.wait()
                return
                yield
            idle = [stream(node.channel(), silent()) for _ in range(8)]
            raw = socket.create_connection(("127.0.0.1", int(node.address.rsplit(":", 1)[1])))
            channel = node.channel()
            for i in range(200):
                self.assertEqual(code_of(project, channel, request(seed=i), timeout=30), OK)
            release.set()
            self.assertEqual([s.code() for s in idle], [OK] * 8)
            raw.close()

    def test_a_client_that_does_not_read_is_held_back(self):  # P063
        with Node("limits { max_stream_calls: 8 }\n" + SMALL) as node:
            message = request(shard=HEAD, rows=32, output_type=3, output_pitch=16 * 2003)
            sent, enough = [], threading.Event()

            def flood():
                for i in range(400):  # 4 MB of replies each: 1.6 GB if nothing held it back
                    message.call_id = f"c{i}"
                    sent.append(i)
                    yield message
                enough.set()
            channel = node.channel()
            before = node.resident_bytes()
            replies = stream(channel, flood())
            for i in range(50):
                self.assertEqual(code_of(project, node.channel(), request(seed=i)), OK)
            self.assertLess(node.resident_bytes() - before, 512 << 20)
            replies.cancel()
            self.settle(node)


if __name__ == "__main__":
    unittest.main()
