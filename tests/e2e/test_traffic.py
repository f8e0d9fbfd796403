# Deadlines, keepalive and connection age as clients meet them. Cases P054, P055, P057, P065, P066,
# P076, P145.
# SPDX-License-Identifier: Apache-2.0
import collections
import random
import tempfile
import threading
import unittest

import grpc
from load import Load
from node import (HEAD, Node, PATIENCE, SMALL, UNLIMITED, code_of, project, request, scaled,
                  stream)
from proxy import HalfwayProxy

OK, EXCEEDED = grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED


class Traffic(unittest.TestCase):
    def hurry(self, node, calls, seconds):
        """Calls with timeouts drawn around `seconds`; how they ended."""
        codes, lock = collections.Counter(), threading.Lock()

        def client(seed):
            dice, channel = random.Random(seed), node.channel()
            for _ in range(calls):
                code = code_of(project, channel, request(HEAD, rows=32),
                               timeout=dice.uniform(0.1, 2) * seconds)
                with lock:
                    codes[code] += 1
        threads = [threading.Thread(target=client, args=(s,)) for s in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return codes

    def test_a_deadline_is_one_code_wherever_it_passes(self):  # P055
        with Node() as node:
            codes = self.hurry(node, scaled(100, 2000), seconds=0.002)
            self.assertLessEqual(set(codes), {OK, EXCEEDED}, codes)
            self.assertGreater(codes[EXCEEDED], 0)
            self.assertEqual(code_of(project, node.channel(), request()), OK)

    def test_short_timeouts_do_not_hurt_long_ones(self):  # P057
        with Node() as node, Load(node, clients=2, timeout=PATIENCE) as patient:
            self.hurry(node, scaled(150, 20000), seconds=0.002)
            patient.wait_for(50)
        self.assertEqual(set(patient.codes), {OK}, patient.details[:3])

    def test_a_connection_that_cannot_fill_a_batch_is_warned_of(self):  # P054
        with Node("limits { max_concurrent_streams: 16 }\n" + SMALL) as node:
            self.assertIn("one connection cannot fill a batch", node.log())
            self.assertEqual(code_of(project, node.channel(), request()), OK)
        with Node() as node:
            self.assertNotIn("cannot fill a batch", node.log())

    def test_a_pinging_idle_client_is_not_cut_off(self):  # P065, P066
        options = UNLIMITED + (("grpc.keepalive_time_ms", 1500),
                               ("grpc.keepalive_permit_without_calls", 1),
                               ("grpc.http2.max_pings_without_data", 0))
        with tempfile.TemporaryDirectory() as folder, Node() as tcp, \
                Node(f'listen: "unix:{folder}/node.sock"\n' + SMALL) as unix:
            lost = []
            changed = threading.Event()
            channels = [(node, node.channel(options)) for node in (tcp, unix)]
            for node, channel in channels:
                self.assertEqual(code_of(project, channel, request()), OK)

                def watch(state, address=node.address):
                    if state in (grpc.ChannelConnectivity.IDLE,
                                 grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                        lost.append(address)
                        changed.set()
                channel.subscribe(watch)
            # A server that counts such pings as abuse cuts the connection at the third.
            changed.wait(scaled(8, 300))
            self.assertEqual(lost, [])
            for node, channel in channels:
                self.assertEqual(code_of(project, channel, request()), OK)
                channel.close()

    def test_a_reader_that_comes_late_gets_its_own_bytes(self):  # P145
        # 256 KB a reply: what gRPC does not buffer waits in the node while its slots serve others.
        with Node() as node:
            channel, count = node.channel(), scaled(32, 200)
            calls = [request(HEAD, rows=32, seed=i, output_type=3, call_id=str(i))
                     for i in range(count)]
            expected = {c.call_id: project(channel, c).outputs[0].data for c in calls}
            replies = stream(channel, iter(calls))
            for i in range(scaled(200, 5000)):
                project(channel, request(HEAD, rows=32, seed=1000 + i % 7, output_type=3))
            got = {reply.call_id: reply.response.outputs[0].data for reply in replies}
            self.assertEqual(got.keys(), expected.keys())
            self.assertEqual([i for i, data in got.items() if data != expected[i]], [])

    def test_an_old_connection_is_closed_without_a_failed_call(self):  # P076
        with Node("limits { max_connection_age_seconds: 1 }\n" + SMALL) as node:
            proxy = HalfwayProxy(node.address, limit=None)
            channel = grpc.insecure_channel(proxy.address, options=UNLIMITED)
            codes = collections.Counter()
            while proxy.accepted < 3 and sum(codes.values()) < 1_000_000:
                codes[code_of(project, channel, request(), timeout=PATIENCE)] += 1
            self.assertEqual(set(codes), {OK}, codes)
            self.assertGreaterEqual(proxy.accepted, 3)
            channel.close()
            proxy.close()


if __name__ == "__main__":
    unittest.main()
