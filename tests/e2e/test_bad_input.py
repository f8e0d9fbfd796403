# Every malformed call of bad_input.py gets its typed status, runs nothing, and leaves the node
# serving; so do calls of methods and services that do not exist. Cases: see bad_input.py; also P019.
# SPDX-License-Identifier: Apache-2.0
import re
import unittest

import bad_input
import grpc
from node import Node, SOURCE, code_of, project, request, stream


class BadInput(unittest.TestCase):
    def test_every_malformed_call_is_refused_with_its_code(self):
        with Node() as node:
            launches = node.metric("fulcrum_launches_total")
            results = list(bad_input.run(node))
            good = 1 + (len(results) + 9) // 10  # the calls in between that must work
            self.assertGreater(len(results), 90)
            self.assertEqual([r for r in results if r[1] != r[2]], [])
            self.assertEqual(node.metric("fulcrum_launches_total") - launches, good)
            self.assertEqual(node.metric("fulcrum_inflight_calls"), 0)

    def test_an_error_names_field_expected_and_got(self):
        with Node() as node:
            message = request()
            message.activations = message.activations[:-2]
            with self.assertRaises(grpc.RpcError) as failed:
                project(node.channel(), message)
            self.assertRegex(failed.exception.details(), r"activations.*1024.*1022|activations.*1022")
            metadata = dict(failed.exception.trailing_metadata())
            self.assertIn(b"activations", metadata["grpc-status-details-bin"])

    def test_a_bad_call_on_a_stream_does_not_end_it(self):
        with Node() as node:
            good, bad = request(call_id="good"), request(rows=33, call_id="bad")
            last = request(call_id="last")
            replies = {r.call_id: r for r in stream(node.channel(), iter((bad, good, last)))}
            self.assertEqual(replies["bad"].error.code, 3)
            for name in ("good", "last"):
                self.assertTrue(replies[name].HasField("response"), replies[name])

    def test_every_method_of_the_protos_is_implemented(self):  # P019
        with Node() as node:
            channel = node.channel()
            for proto in sorted((SOURCE / "proto" / "fulcrum" / "v1").glob("*.proto")):
                text = proto.read_text()
                for service in re.finditer(r"^service (\w+) \{(.*?)^\}", text, re.M | re.S):
                    for name, streams_in, streams_out in re.findall(
                            r"rpc (\w+)\((stream )?\w+\) returns \((stream )?", service.group(2)):
                        kind = (("stream" if streams_in else "unary") + "_" +
                                ("stream" if streams_out else "unary"))
                        rpc = getattr(channel, kind)(f"/fulcrum.v1.{service.group(1)}/{name}")
                        argument = iter((b"",)) if streams_in else b""
                        reply = rpc(argument, timeout=30) if streams_out else rpc.future(argument,
                                                                                        timeout=30)
                        if name == "WatchLevers":  # lasts until somebody ends it
                            reply.initial_metadata()
                            reply.cancel()
                        code = reply.code()
                        self.assertNotIn(code, (grpc.StatusCode.UNIMPLEMENTED,
                                                grpc.StatusCode.UNKNOWN,
                                                grpc.StatusCode.INTERNAL), name)
            unknown = channel.unary_unary("/fulcrum.v1.ProjectionService/Multiply")
            self.assertEqual(code_of(unknown, b""), grpc.StatusCode.UNIMPLEMENTED)


if __name__ == "__main__":
    unittest.main()
