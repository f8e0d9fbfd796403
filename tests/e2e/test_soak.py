# Memory and counters over many calls: short in every run, a million calls with FULCRUM_LONG_TESTS.
# Cases P017, P045, P052, P053, P058, P061, P062, P064.
# SPDX-License-Identifier: Apache-2.0
import collections
import json
import random
import threading
import unittest

import grpc
from node import (GATE, Node, SMALL, code_of, project, project_future, request, scaled,
                  shard_service_pb2, method)

OK = grpc.StatusCode.OK


class Soak(unittest.TestCase):
    def drained(self, node):
        channel = node.channel()
        for _ in range(5000):
            self.assertEqual(code_of(project, channel, request()), OK)
            if not (node.metric("fulcrum_inflight_calls") or node.metric("fulcrum_queue_rows") or
                    node.metric("fulcrum_queue_bytes")):
                return
        self.fail("calls left in flight or queued")

    def test_memory_does_not_grow_with_calls(self):  # P061, P062, P064
        # One arena: else threads come to one of their own, 0.9 MB each and eight a core, whenever they
        # first meet another that allocates, which is no growth with calls.
        with Node(env={"MALLOC_ARENA_MAX": "1"}) as node:
            def bench(seconds):
                done = node.fulcrum("bench", "--shard", GATE, "--clients", 8, "--rows", 1,
                                    "--seconds", seconds, "--json")
                result = json.loads(done.stdout)
                self.assertEqual((result["errors"], result["mismatches"]), (0, 0))
                return node.resident_bytes()
            calls = lambda: node.metric("fulcrum_calls_total", code="OK")  # noqa: E731
            bench(3)  # buffers and caches fill
            half = scaled(60_000, 500_000)
            resident = [bench(1)]
            first = calls()
            while calls() - first < half:
                resident.append(bench(scaled(1, 10)))
            middle, counted = resident[-1], calls()
            while calls() - counted < half:
                resident.append(bench(scaled(1, 10)))
            grown = resident[-1] - middle
            # Under 1 KB per 1,000 calls, and room for the allocator's steps.
            allowed = 1024 * (calls() - counted) / 1000 + (2 << 20)
            self.assertLess(grown, allowed, resident)

    def test_cancels_at_random_points_leave_nothing(self):  # P053, P056, P058
        with Node() as node:
            def storm(seed, count):
                dice, channel = random.Random(seed), node.channel()
                waiting = collections.deque()
                for _ in range(count):
                    waiting.append(project_future(channel, request(rows=dice.randint(1, 32))))
                    if len(waiting) > dice.randint(1, 32):
                        call = waiting.popleft()
                        call.cancel() if dice.random() < 0.7 else call.exception()
                for call in waiting:
                    call.cancel()
            threads = [threading.Thread(target=storm, args=(s, scaled(400, 5000))) for s in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.drained(node)

    def test_after_a_cancel_storm_everything_works_as_before(self):  # P052
        with Node() as node:
            channel = node.channel()
            reference = project(channel, request(rows=4)).outputs[0].data
            for _ in range(scaled(200, 5000)):
                calls = [project_future(channel, request(rows=8)) for _ in range(5)]
                for call in calls[1:]:
                    call.cancel()
                self.assertIsNone(calls[0].exception())
            self.drained(node)
            for _ in range(100):
                self.assertEqual(project(channel, request(rows=4)).outputs[0].data, reference)

    def test_a_burst_beyond_the_queue_is_refused_not_stored(self):  # P045, P047, P075
        # Rows of four shards, held for company: 64 of them fill the queue before any batch of 32 does.
        config = """limits { max_queue_rows: 64 max_prefill_rows: 64 }
                    levers { key: "coalesce_window_us" value: "100000" }\n""" + SMALL
        messages = [request(shard=f"models/small/shards/{name}") for name in
                    ("layers.0.ffn_gate", "layers.0.ffn_up", "layers.0.ssm_in", "lm_head")]
        with Node(config) as node:
            codes, delays = collections.Counter(), set()
            channels = [node.channel() for _ in range(4)]
            for round_ in range(scaled(3, 200)):
                calls = [project_future(channels[i % 4], messages[i % 4]) for i in range(200)]
                for call in calls:
                    call.exception()
                    codes[call.code()] += 1
                    if call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                        delays.add(b"RetryInfo" in dict(call.trailing_metadata()).get(
                            "grpc-status-details-bin", b""))
            self.assertEqual(set(codes), {OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes)
            self.assertEqual(delays, {True})
            self.assertEqual(node.metric("fulcrum_rejections_total", reason="queue_rows"),
                             codes[grpc.StatusCode.RESOURCE_EXHAUSTED])
            self.drained(node)

    def test_load_and_unload_return_the_memory(self):  # P017
        from node import DATA
        file = DATA / "fp8" / "model.layers.0.mlp.gate_proj.safetensors"
        name = "models/extra/shards/gate"
        with Node(f'weight_roots: "{file.parent}"\n' + SMALL) as node:
            channel = node.channel()
            load = method(channel, "ShardService", "LoadShard", shard_service_pb2.Shard)
            unload = method(channel, "ShardService", "UnloadShard",
                            shard_service_pb2.UnloadShardResponse)
            def cycle(count):
                for _ in range(count):
                    load(shard_service_pb2.LoadShardRequest(
                        name=name, file=shard_service_pb2.WeightFile(
                            path=str(file), tensor=file.stem + ".weight")), timeout=60)
                    unload(shard_service_pb2.UnloadShardRequest(name=name), timeout=60)
                return node.resident_bytes()
            before_bytes = node.metric("fulcrum_shard_bytes")
            before = cycle(scaled(50, 200))
            after = cycle(scaled(100, 1000))
            self.assertEqual(node.metric("fulcrum_shard_bytes"), before_bytes)
            self.assertLess(after - before, 4 << 20)


if __name__ == "__main__":
    unittest.main()
