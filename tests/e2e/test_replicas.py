# Nodes that come, go and stand in for each other: one that starts, one that was killed and is back on
# its port, two that answer for the same model, one that is slower than its peer. Cases P022, P025, P093,
# P097, P144.
# SPDX-License-Identifier: Apache-2.0
import unittest

import grpc
from node import GATE, HEAD, Node, SMALL, code_of, list_shards, project, request, scaled

OK, NOT_FOUND, UNAVAILABLE = (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND,
                              grpc.StatusCode.UNAVAILABLE)
EXACT, BATCH_INVARIANT = 1, 2


class Replicas(unittest.TestCase):
    def test_a_node_that_still_loads_sends_callers_elsewhere(self):  # P093, P097
        config = SMALL + 'models { model: "big" synthetic: "qwen-27b:lm_head" }\n'
        with Node(config, wait=False) as node:
            node.wait_listening()
            node.wait_line(r"layers\.0\.ffn_gate.*state=serving")
            channel = node.channel()
            self.assertEqual(code_of(project, channel, request()), OK)
            for shard in ("models/big/shards/lm_head", "models/big/shards/none"):
                with self.assertRaises(grpc.RpcError) as failed:
                    project(channel, request(shard, k=5120))
                self.assertEqual(failed.exception.code(), UNAVAILABLE, shard)
                self.assertIn("still loads", failed.exception.details())
        with Node() as node:
            self.assertEqual(code_of(project, node.channel(), request("models/big/shards/none")),
                             NOT_FOUND)

    def test_two_nodes_of_one_model_answer_with_the_same_bytes(self):  # P025
        with Node("cpu_threads: 1\n" + SMALL) as one, Node("cpu_threads: 3\n" + SMALL) as two:
            channels = one.channel(), two.channel()
            shards = list_shards(channels[0])
            self.assertEqual({(s.name, s.hash) for s in shards},
                             {(s.name, s.hash) for s in list_shards(channels[1])})
            calls = [request(s.name, rows, s.k, seed=rows, policy=policy)
                     for s in shards for rows in (1, 7) for policy in (EXACT, BATCH_INVARIANT)]
            first = [project(channels[0], call).outputs[0].data for call in calls]
            # A sequence that changes its node at every call.
            turns = [project(channels[i % 2], call).outputs[0].data
                     for i, call in enumerate(calls, start=1)]
            self.assertEqual(turns, first)

    def test_one_scrape_says_which_node_is_slow_and_where(self):  # P022
        # A batch of this node waits 20 ms for company that never comes.
        slow = 'levers { key: "coalesce_window_us" value: "20000" }\n' + SMALL
        with Node() as fast_node, Node(slow) as slow_node:
            means = []
            for node in (fast_node, slow_node):
                replies = [project(node.channel(), request()) for _ in range(10)]
                self.assertEqual(len({reply.provenance.node for reply in replies}), 1)
                mean = {}
                for stage in ("queue", "kernel"):
                    labels = {"phase": "ffn", "stage": stage}
                    mean[stage] = (node.metric("fulcrum_stage_seconds_sum", **labels) /
                                   node.metric("fulcrum_stage_seconds_count", **labels))
                for phase in ("attention", "ssm", "lm_head"):  # nothing ran there
                    self.assertEqual(node.metric("fulcrum_rows_total", phase=phase), 0)
                means.append(mean)
            fast, slow = means
            self.assertGreaterEqual(slow["queue"], 0.02)
            self.assertLess(fast["queue"], slow["queue"])
            self.assertLess(slow["kernel"], slow["queue"])  # not the device

    def test_a_killed_node_is_found_again_on_its_port(self):  # P144
        node = Node()
        address = node.address
        channel = node.channel()
        seen = {project(channel, request()).provenance.node}
        rounds = scaled(3, 30)
        for _ in range(rounds):
            with node:
                node.process.kill()
                node.wait_exit()
            self.assertEqual(code_of(project, channel, request(), timeout=10), UNAVAILABLE)
            node = Node(f'listen: "{address}"\n' + SMALL)
            # The client that was there before the restart: 5 s, gRPC's own first waits included.
            reply = project(channel, request(), timeout=5, wait_for_ready=True)
            seen.add(reply.provenance.node)
            done = node.fulcrum("health")
            self.assertIn("SERVING", done.stdout)
            self.assertEqual({s.name for s in list_shards(channel)} & {GATE, HEAD}, {GATE, HEAD})
        self.assertEqual(node.stop(), 0, node.log())
        node.process.stdout.close()
        node.folder.cleanup()
        self.assertEqual(len(seen), rounds + 1)  # every start is an instance of its own


if __name__ == "__main__":
    unittest.main()
