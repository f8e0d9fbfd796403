# A compressed request is refused as a whole, before anything of it is inflated: a message of 2 MB
# can hold 2 GB. For every service, unary and on streams. Cases: R01.
# SPDX-License-Identifier: Apache-2.0
import unittest

import grpc
from node import Node, PATIENCE, project, request

BOMB = b"\0" * (64 << 20)  # 64 KB once compressed
METHODS = [
    ("/fulcrum.v1.ProjectionService/Project", "unary_unary"),
    ("/fulcrum.v1.ProjectionService/ProjectStream", "stream_stream"),
    ("/fulcrum.v1.ShardService/ListShards", "unary_unary"),
    ("/fulcrum.v1.ShardService/LoadShard", "unary_unary"),
    ("/fulcrum.v1.LeverService/SetLevers", "unary_unary"),
    ("/fulcrum.v1.LeverService/WatchLevers", "unary_stream"),
    ("/grpc.health.v1.Health/Check", "unary_unary"),
    ("/grpc.health.v1.Health/Watch", "unary_stream"),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "stream_stream"),
]


def peak_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def code_of(channel, path, kind, compression):
    messages = iter((BOMB,)) if kind.startswith("stream") else BOMB
    rpc = getattr(channel, kind)(path)
    if kind.endswith("stream"):
        return rpc(messages, timeout=PATIENCE, compression=compression).code()
    return rpc.future(messages, timeout=PATIENCE, compression=compression).code()


class Compression(unittest.TestCase):
    def test_a_compressed_request_is_refused_before_it_is_inflated(self):
        with Node() as node:
            project(node.channel(), request())
            before = peak_bytes(node.process.pid)
            for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                for path, kind in METHODS:
                    code = code_of(node.channel(), path, kind, compression)
                    self.assertEqual(code, grpc.StatusCode.UNIMPLEMENTED, (path, compression))
            # One inflated message would add 64 MB.
            self.assertLess(peak_bytes(node.process.pid) - before, len(BOMB) // 2)
            project(node.channel(), request())


if __name__ == "__main__":
    unittest.main()
