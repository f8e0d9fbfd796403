# Starting and stopping a node: SIGTERM under load, during loading, with streams open, with a request
# half received. Cases P067, P068, P069, P089, P093, P094, P095.
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import tempfile
import threading
import unittest

import grpc
from load import Load
from node import (DATA, GATE, HEAD, Node, SMALL, UNLIMITED, code_of, project, project_future, request, scaled, stream)
from proxy import HalfwayProxy

OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE


def health(channel, service="", kind="Check"):
    """The standard health service, with its two messages written by hand: field 1 of the request is
    the service's name, field 1 of the reply the state (1 = SERVING, 2 = NOT_SERVING)."""
    call = (channel.unary_unary if kind == "Check" else channel.unary_stream)(
        f"/grpc.health.v1.Health/{kind}",
        request_serializer=lambda name: bytes((0x0A, len(name))) + name.encode() if name else b"",
        response_deserializer=lambda data: data[1] if data else 0)
    return call(service, timeout=60)


class Lifecycle(unittest.TestCase):
    def test_start_stop_under_load_always_exits_with_zero(self):  # P069
        for _ in range(scaled(4, 100)):
            node = Node()
            with Load(node, clients=4) as load:
                load.wait_for(50)
                node.terminate()
                self.assertEqual(node.wait_exit(), 0, node.log())
            self.assertLessEqual(set(load.codes), {OK, UNAVAILABLE}, load.details[:5])

    def test_sigterm_finishes_accepted_calls_and_refuses_new_ones(self):  # P093
        node = Node()
        with node, Load(node, clients=6) as load:
            watched = node.channel()
            states = health(watched, kind="Watch")
            self.assertEqual(next(states), 1)
            load.wait_for(50)
            node.terminate()
            self.assertEqual(next(states), 2)  # told while the connection still stands
            self.assertEqual(code_of(project, node.channel(), request()), UNAVAILABLE)
            self.assertEqual(node.wait_exit(), 0, node.log())
        self.assertLessEqual(set(load.codes), {OK, UNAVAILABLE}, load.details[:5])

    def test_sighup_drains_too(self):
        with Node() as node:
            node.process.send_signal(signal.SIGHUP)
            self.assertEqual(node.wait_exit(), 0, node.log())
            self.assertIn("event=stopped", node.log())

    def test_sigterm_while_a_request_is_half_received(self):  # P094
        with Node("limits { max_prefill_rows: 4096 max_queue_rows: 4096 }\n" + SMALL) as node:
            proxy = HalfwayProxy(node.address, limit=2 << 20)
            channel = grpc.insecure_channel(proxy.address, options=UNLIMITED)
            big = request(rows=1, activation_pitch=0)
            big.rows, big.step = 4096, 2
            big.activations = bytes(4096 * 512 * 2)  # 4 MiB
            call = project_future(channel, big)
            self.assertTrue(proxy.held.wait(60))
            node.terminate()
            node.wait_line("event=draining")
            proxy.release()
            self.assertEqual(node.wait_exit(), 0, node.log())
            self.assertIn(call.code(), (OK, UNAVAILABLE), call.details())
            proxy.close()

    def test_sigterm_during_a_long_load_does_not_wait_for_it(self):  # P095
        # More than many machines have: a budget that says otherwise, or the start would be refused.
        node = Node('models { model: "big" synthetic: "qwen-27b" }\n'
                    "memory_budget_bytes: 1099511627776\n", wait=False)
        with node:
            node.wait_listening()
            node.terminate()
            self.assertEqual(node.wait_exit(), 0, node.log())
            self.assertNotIn("fulcrumd serving", node.log())

    def test_sigterm_ends_idle_streams(self):  # P067
        with Node() as node:
            ends, streams = [], []
            release = threading.Event()
            for _ in range(10):
                def silent():
                    release.wait()
                    return
                    yield
                streams.append(stream(node.channel(), silent()))
            calls = [project(node.channel(), request()) for _ in range(2)]
            self.assertEqual(len(calls), 2)
            node.terminate()
            ends = [s.code() for s in streams]
            release.set()
            self.assertEqual(node.wait_exit(), 0, node.log())
            self.assertEqual(set(ends), {UNAVAILABLE})

    def test_far_deadlines_do_not_hold_up_a_stop(self):  # P068
        with Node('levers { key: "coalesce_window_us" value: "100000" }\n' + SMALL) as node:
            with Load(node, clients=4, timeout=600) as load:
                load.wait_for(5)
                node.terminate()
                self.assertEqual(node.wait_exit(), 0, node.log())
            self.assertLessEqual(set(load.codes), {OK, UNAVAILABLE}, load.details[:5])

    def test_a_loading_shard_does_not_take_down_the_others(self):  # P089
        config = SMALL + 'models { model: "big" synthetic: "qwen-27b:lm_head" }\n'
        with Node(config, wait=False) as node:
            node.wait_listening()
            node.wait_line(r"layers\.0\.ffn_gate.*state=serving")
            node.wait_line(r"models/big/shards/lm_head.*state=loading")
            channel = node.channel()
            self.assertEqual(health(channel, GATE), 1)
            self.assertEqual(code_of(project, channel, request()), OK)
            self.assertEqual(health(channel, "models/big/shards/lm_head"), 2)

    def test_health_knows_every_name(self):
        with Node() as node:
            channel = node.channel()
            for name in ("", "fulcrum.v1.ProjectionService", GATE, HEAD):
                self.assertEqual(health(channel, name), 1, name)
            self.assertEqual(code_of(health, channel, "no.such.Service"), grpc.StatusCode.NOT_FOUND)

    def test_a_refused_configuration_is_one_clear_failure(self):
        for config, why in ((SMALL + "no_such_field: 1\n", "no_such_field"),
                            ('models { model: "x" synthetic: "nonsense" }\n', "nonsense"),
                            ('listen: "0.0.0.0:0"\n' + SMALL, "allow_insecure_bind")):
            node = Node(config, wait=False)
            status = node.wait_exit()
            self.assertNotEqual(status, 0, config)
            self.assertIn(why, node.log())
            node.process.stdout.close()
            node.folder.cleanup()

    def test_a_model_that_cannot_be_served_is_told_before_the_node_listens(self):
        with tempfile.TemporaryDirectory() as folder:
            absent, empty = f"{folder}/absent", f"{folder}/empty"
            os.mkdir(empty)
            q2 = str(DATA / "q2_0" / "mainline.gguf")
            shard = ('models { model: "m" shards { shard { name: "s" path: "%s" tensor: "%s" } } }\n')
            for config, args, why in (
                    ("", ("--model", absent), absent), ("", ("--model", empty), empty),
                    ("", ("--model", __file__), __file__), ("", ("--model", ""), "--model"),
                    ("", ("--synthetic", "Nonsense"), "Nonsense"),
                    (f'models {{ model: "m" checkpoint: "{absent}" }}\n', (), absent),
                    (shard % (absent, "w"), (), absent), (shard % (q2, "no.tensor"), (), "no.tensor"),
                    (SMALL + "memory_budget_bytes: 1048576\n", (), "first without room"),
                    (SMALL + f'weight_roots: "{absent}"\n', (), absent)):
                for validate in ((), ("--validate-config",)):
                    node = Node(config, args=(*args, *validate), wait=False)
                    self.assertEqual(node.wait_exit(), 2, node.log())
                    self.assertIn(why, node.log())
                    self.assertNotIn("listening", node.log())
                    node.process.stdout.close()
                    node.folder.cleanup()

    def test_a_taken_port_is_one_sentence(self):
        with Node() as node:
            second = Node(f'listen: "{node.address}"\n' + SMALL, wait=False)
            self.assertEqual(second.wait_exit(), 1)
            self.assertEqual(len(second.lines), 1, second.log())
            self.assertIn(node.address, second.log())
            second.process.stdout.close()
            second.folder.cleanup()

    def test_a_node_without_shards_says_so(self):
        with Node("") as node:
            self.assertIn('event="no shard is configured"', node.log())


if __name__ == "__main__":
    unittest.main()
