# Where a node can be reached: on loopback or its socket and nowhere else, and on the path of a socket
# as it is written. Case P153.
# SPDX-License-Identifier: Apache-2.0
import ipaddress
import os
import pathlib
import re
import tempfile
import unittest
import urllib.parse

import grpc
from node import Node, SMALL, code_of, project, request

OK = grpc.StatusCode.OK
LISTEN = "0A"  # a TCP socket's state in /proc/net/tcp


def sockets(pid):
    """Inodes of the sockets that a process holds."""
    names = (os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir())
    return {m.group(1) for m in (re.match(r"socket:\[(\d+)\]", name) for name in names) if m}


def address(text):
    """"0100007F" -> 127.0.0.1: words of four bytes, each in the machine's order."""
    raw = bytes.fromhex(text)
    found = ipaddress.ip_address(b"".join(raw[i:i + 4][::-1] for i in range(0, len(raw), 4)))
    return getattr(found, "ipv4_mapped", None) or found


def listening(pid):
    """(address, port) of every TCP or UDP port that a process can be reached on."""
    held, found = sockets(pid), set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in held and (table.startswith("udp") or fields[3] == LISTEN):
                host, port = fields[1].split(":")
                found.add((address(host), int(port, 16)))
    return found


class Addresses(unittest.TestCase):
    def test_a_node_listens_on_its_two_addresses_and_no_other(self):  # P153
        with Node() as node:
            self.assertEqual(code_of(project, node.channel(), request()), OK)
            expected = {(ipaddress.ip_address("127.0.0.1"), int(a.rsplit(":", 1)[1]))
                        for a in (node.address, node.metrics_address)}
            self.assertEqual(listening(node.process.pid), expected)
        with tempfile.TemporaryDirectory() as folder:
            config = f'listen: "unix:{folder}/node.sock"\nmetrics_listen: "off"\n' + SMALL
            with Node(config) as node:
                self.assertEqual(code_of(project, node.channel(), request()), OK)
                self.assertEqual(listening(node.process.pid), set())
        with Node('listen: "0.0.0.0:0"\nallow_insecure_bind: true\n' + SMALL) as node:
            self.assertTrue(any(host.is_unspecified for host, _ in listening(node.process.pid)))

    def test_a_sockets_path_is_taken_as_it_stands(self):
        for name in ("a%41.sock", "100%", "what?.sock", "a#b"):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / name
                with Node(f'listen: "unix:{path}"\n' + SMALL) as node:
                    self.assertEqual(node.address, f"unix:{path}")
                    self.assertEqual(os.listdir(folder), [name])
                    self.assertIn("SERVING", node.fulcrum("health").stdout)
                    # A client that reads its target as a URI writes the path as one.
                    with grpc.insecure_channel("unix:" + urllib.parse.quote(str(path))) as channel:
                        self.assertEqual(code_of(project, channel, request()), OK)
                self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
