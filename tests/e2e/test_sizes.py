# Messages around the sizes where gRPC and buffers change their ways, in both directions. Cases P034,
# P035, P036.
# SPDX-License-Identifier: Apache-2.0
import unittest

import grpc
from node import HEAD, HEAD_N, Node, SMALL, code_of, project, request

OK, EXHAUSTED = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
MIB = 1 << 20


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def padded(size):
    """A valid one-row request of exactly `size` bytes on the wire: an unknown field fills it up."""
    message = request().SerializeToString()
    head = varint(1000 << 3 | 2)  # field 1000, length-delimited
    fill = size - len(message) - len(head)
    length = fill - len(varint(fill))
    filler = head + varint(length) + bytes(length)
    if len(message) + len(filler) != size:
        filler = head + varint(length) + bytes(length + size - len(message) - len(filler))
    return message + filler


class Sizes(unittest.TestCase):
    def test_requests_around_the_boundaries(self):  # P034
        with Node() as node:
            channel = node.channel()
            reference = project(channel, request()).outputs[0].data
            for size in (4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 16 * MIB, 64 * MIB):
                message = padded(size)
                self.assertEqual(len(message), size)
                self.assertEqual(project(channel, message).outputs[0].data, reference, size)
            self.assertEqual(code_of(project, channel, padded(64 * MIB + 1)), EXHAUSTED)
            self.assertEqual(project(channel, request()).outputs[0].data, reference)

    def test_replies_around_the_boundaries(self):  # P034
        # 512 rows of 2003 F32 outputs, spread by the pitch.
        with Node() as node:
            channel = node.channel()
            dense = project(channel, request(HEAD, rows=512, output_type=3, step=2)).outputs[0].data
            for target in (4 * MIB - 2048, 4 * MIB, 4 * MIB + 2048, 16 * MIB, 62 * MIB):
                pitch = target // (512 * 4)
                reply = project(channel, request(HEAD, rows=512, output_type=3, step=2,
                                                 output_pitch=pitch))
                data = reply.outputs[0].data
                self.assertEqual(len(data), target)
                for row in (0, 1, 511):
                    begin = row * pitch * 4
                    self.assertEqual(data[begin:begin + HEAD_N * 4],
                                     dense[row * HEAD_N * 4:(row + 1) * HEAD_N * 4])
                    gap = data[begin + HEAD_N * 4:begin + pitch * 4]
                    self.assertEqual(gap, bytes(len(gap)))
            over = request(HEAD, rows=1024, output_type=3, step=2, output_pitch=16 * HEAD_N)
            self.assertEqual(code_of(project, channel, over), EXHAUSTED)  # 131 MB

    def test_a_stock_client_is_told_whose_limit_it_is(self):  # P035, P036
        with Node() as node:
            stock = grpc.insecure_channel(node.address)
            wide = request(HEAD, rows=64, step=2, output_type=3, output_pitch=16 * HEAD_N)
            with self.assertRaises(grpc.RpcError) as failed:
                project(stock, wide)
            self.assertEqual(failed.exception.code(), EXHAUSTED)
            self.assertIn("4194304", failed.exception.details())  # the client's own limit
            self.assertEqual(len(project(node.channel(), wide).outputs[0].data), 64 * 16 * HEAD_N * 4)

    def test_a_low_limit_of_the_node_is_named(self):  # P036
        with Node("limits { max_message_bytes: 1048576 }\n" + SMALL) as node:
            channel = node.channel()
            self.assertEqual(code_of(project, channel, padded(MIB)), OK)
            self.assertEqual(code_of(project, channel, padded(MIB + 1)), EXHAUSTED)
            with self.assertRaises(grpc.RpcError) as failed:
                project(channel, request(HEAD, rows=32, output_pitch=16 * HEAD_N))  # 2 MB of outputs
            self.assertEqual(failed.exception.code(), EXHAUSTED)
            self.assertIn("1048576", failed.exception.details())
            details = dict(failed.exception.trailing_metadata()).get("grpc-status-details-bin", b"")
            self.assertNotIn(b"RetryInfo", details)  # P075: waiting would not help


if __name__ == "__main__":
    unittest.main()
