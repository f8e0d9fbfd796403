# Levers of a real node: kept over kill -9, unmoved by whoever set them going away, one set of values
# a reply; canaries from the command line. Cases P149, P150, P151, P152.
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import random
import struct
import tempfile
import threading
import time
import unittest

import grpc
from load import Load
from node import (GATE, Node, PATIENCE, SMALL, code_of, lever_service_pb2, list_shards, method,
                  project, request, scaled, set_levers)

BLOCKFOLD = 3
FASTEST = 3


def list_levers(channel):
    call = method(channel, "LeverService", "ListLevers", lever_service_pb2.ListLeversResponse)
    return call(lever_service_pb2.ListLeversRequest(), timeout=PATIENCE)


def values(channel):
    return {lever.name: lever.value for lever in list_levers(channel).levers}


def write_fp8(path, n, k, code):
    """A safetensors file of one weight `w`, every element the same E4M3 code, every scale 1."""
    blocks = (-(-n // 128), -(-k // 128))
    scale_bytes = 4 * blocks[0] * blocks[1]
    header = json.dumps({
        "w": {"dtype": "F8_E4M3", "shape": [n, k], "data_offsets": [0, n * k]},
        "w_scale_inv": {"dtype": "F32", "shape": list(blocks),
                        "data_offsets": [n * k, n * k + scale_bytes]}}).encode()
    scales = struct.pack("<f", 1.0) * (blocks[0] * blocks[1])
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes([code]) * (n * k) + scales)


class Levers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="fulcrum-levers-")
        self.addCleanup(folder.cleanup)
        self.journal = pathlib.Path(folder.name) / "levers.journal"
        self.config = f'lever_journal: "{self.journal}"\n' + SMALL

    def test_what_was_set_survives_kill_9_at_random_moments(self):
        dice, kept = random.Random(7), {}
        for _ in range(scaled(6, 60)):
            with Node(self.config) as node:
                channel = node.channel()
                # At most the change in hand when the node died may have been kept unacknowledged.
                have = values(channel)
                self.assertIn(have["coalesce_window_us"], kept.get("maybe", ["0"]))
                acknowledged, attempted, left = None, None, dice.randrange(5, 60)
                done = threading.Event()

                def flip():
                    nonlocal acknowledged, attempted
                    step = 0
                    try:
                        while True:
                            step += 1
                            attempted = str(1000 + (step * 7919 + left) % 90000)
                            set_levers(channel, coalesce_window_us=attempted)
                            acknowledged = attempted
                            if step == left:
                                done.set()
                    except grpc.RpcError:
                        done.set()
                thread = threading.Thread(target=flip)
                thread.start()
                done.wait(PATIENCE)
                node.process.kill()
                thread.join(PATIENCE)
                node.process.wait(PATIENCE)
                self.assertIsNotNone(acknowledged)
                kept["maybe"] = [acknowledged, attempted]
        history = json.loads(self.last_history())["events"]
        self.assertTrue(all(e["cause"] == "set" for e in history))
        self.assertEqual([e["from"] for e in history[1:]], [e["to"] for e in history[:-1]])

    def last_history(self):
        with Node(self.config) as node:
            return node.fulcrum("levers", "history", "--json", "--limit", "1024").stdout

    def test_a_canary_that_was_running_comes_back_on_the_control(self):
        with Node(self.config) as node:
            node.fulcrum("levers", "set", "m16_tc=all", "--canary", "30%", "--by", "batch")
            set_levers(node.channel(), max_batch_rows="16")
            node.process.kill()
            node.process.wait(PATIENCE)
        with Node(self.config) as node:
            self.assertEqual(values(node.channel())["m16_tc"], "off")
            self.assertEqual(values(node.channel())["max_batch_rows"], "16")
            history = node.fulcrum("levers", "history").stdout.splitlines()
            self.assertIn("revert", history[-1])
            self.assertIn("the node ended while the canary ran", history[-1])

    def test_a_damaged_journal_stops_the_start(self):
        with Node(self.config) as node:
            for value in ("1", "2", "3"):
                set_levers(node.channel(), coalesce_window_us=value)
        data = bytearray(self.journal.read_bytes())
        data[len(data) // 2] ^= 1
        self.journal.write_bytes(data)
        with Node(self.config, wait=False) as node:
            self.assertEqual(node.wait_exit(), 1)
            self.assertIn("line 2", node.log())
        self.journal.write_bytes(bytes(data[:40]))  # a cut last record is no damage
        with Node(self.config) as node:
            self.assertIn("dropped line 1, its last", node.log())

    def test_a_setter_that_goes_away_changes_nothing(self):  # P149, P150, P151
        with Node(self.config) as node:
            setter = node.channel()
            set_levers(setter, m16_tc="all")
            epoch = list_levers(setter).epoch
            setter.close()
            with Load(node, clients=2) as load:
                load.wait_for(scaled(300, 5000))
            self.assertEqual(set(load.codes), {grpc.StatusCode.OK}, load.details[:3])
            blockfold = node.metric("fulcrum_rows_total", tier="cpu_w8a16_blockfold")
            self.assertGreater(blockfold, 0)
            self.assertEqual(node.metric("fulcrum_rows_total", tier="cpu_w8a16_exact"), 0)
            after = list_levers(node.channel())
            self.assertEqual(after.epoch, epoch)
            self.assertEqual([v.source for v in after.levers if v.name == "m16_tc"],
                             [lever_service_pb2.LEVER_SOURCE_RPC])
        # Over a restart the value is the same and its source says that it is from before.
        with Node(self.config) as node:
            reply = project(node.channel(), request(GATE))
            self.assertEqual(reply.outputs[0].numerics, BLOCKFOLD)
            self.assertEqual(reply.provenance.lever_epoch, epoch)
            levers = list_levers(node.channel()).levers
            self.assertEqual([v.source for v in levers if v.name == "m16_tc"],
                             [lever_service_pb2.LEVER_SOURCE_JOURNAL])

    def test_flips_and_canaries_under_load_mix_nothing(self):  # P152
        with Node(self.config) as node:
            channel = node.channel()
            shards = sorted(list_shards(channel), key=lambda s: s.name)
            exact = {}
            for shard in shards:
                exact[shard.name] = project(channel, request(shard.name, 2, shard.k, policy=1))
            stop, failures = threading.Event(), []
            replies = []

            def client(seed):
                dice, own = random.Random(seed), node.channel()
                try:
                    while not stop.is_set():
                        shard, policy = dice.choice(shards), dice.choice((1, 2, 3))
                        reply = project(own, request(shard.name, 2, shard.k, policy=policy))
                        if policy == 1 and (reply.outputs[0].data !=
                                            exact[shard.name].outputs[0].data):
                            failures.append(f"EXACT bytes of {shard.name} differ")
                        replies.append((shard.family, policy, reply.provenance.lever_epoch,
                                        reply.outputs[0].numerics))
                except Exception as error:  # noqa: BLE001  a thread's failure is the test's
                    failures.append(repr(error))
            threads = [threading.Thread(target=client, args=(s,)) for s in range(3)]
            for thread in threads:
                thread.start()
            epochs = {list_levers(channel).epoch: "off"}
            dice = random.Random(1)
            for turn in range(scaled(15, 300)):
                value = ("all:one_pass", "off")[turn % 2]
                epochs[set_levers(channel, m16_tc=value).epoch] = value
                started = node.fulcrum(
                    "levers", "set", "m16_tc=" + ("off", "all:m16")[turn % 2], "--canary",
                    f"{dice.choice((20, 50))}%", "--by", dice.choice(("shard", "batch")), "--json")
                canary = json.loads(started.stdout)
                epochs[canary["epoch"]] = canary["candidate"]["m16_tc"]
                epochs[canary["control_epoch"]] = canary["control"]["m16_tc"]
                before = len(replies)
                while len(replies) < before + 30 and not failures:
                    project(channel, request(GATE))
                node.fulcrum("levers", "abort")
                epochs[list_levers(channel).epoch] = value
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
            self.assertEqual(failures, [])
            self.assertGreater(len(replies), 100)
            for _, policy, epoch, numerics in replies:
                self.assertIn(epoch, epochs)
                if numerics == BLOCKFOLD:
                    self.assertNotEqual(policy, 1)
                    self.assertNotEqual(epochs[epoch], "off", epoch)
            self.assertGreater(sum(n == BLOCKFOLD for *_, n in replies), 0)
            self.assertEqual(node.metric("fulcrum_incidents_total"), 0)

    def test_ten_connections_of_one_address_are_refused_unless_that_is_allowed(self):
        with Node(self.config) as node:
            channels = [node.channel() for _ in range(10)]
            for i in range(100):
                project(channels[i % 10], request(GATE, seed=i))
            canary = ("levers", "set", "m16_tc=all", "--canary", "5%", "--by", "client")
            refused = node.fulcrum(*canary, check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("one client (127.0.0.1) sent 100%", refused.stderr)
            self.assertIn("--allow-uneven", refused.stderr)
            self.assertEqual(values(channels[0])["m16_tc"], "off")
            allowed = node.fulcrum(*canary, "--allow-uneven").stdout
            self.assertIn("traffic of the last minute: 1 client, 100 rows; the largest client "
                          "(127.0.0.1) sent 100%", allowed)
            self.assertIn("the canary's side: 0% of these rows, 0 of 1 client: the canary gets none",
                          allowed)
            control = list_levers(channels[0]).epoch
            epochs = [project(channels[i % 10], request(GATE, seed=i)).provenance.lever_epoch
                      for i in range(100)]
            self.assertEqual(set(epochs), {control})

    def test_clients_that_a_trusted_proxy_names_get_the_share_of_traffic(self):
        identity = 'identity { header: "x-fulcrum-client" trusted_peers: "127.0.0.0/8" }\n'
        with Node(identity + self.config) as node:
            channels = [node.channel() for _ in range(10)]  # of the proxy, shared by its clients

            def epochs(calls):
                """Lever epochs of the replies to each of 40 clients."""
                got = {}
                for i in range(calls):
                    client = f"client-{i % 40}"
                    reply = project(channels[i % 10], request(GATE, rows=2, seed=i),
                                    metadata=(("x-fulcrum-client", client),))
                    got.setdefault(client, []).append(reply.provenance.lever_epoch)
                return got
            epochs(120)
            started = node.fulcrum("levers", "set", "m16_tc=all", "--canary", "5%", "--by", "client",
                                   "--guard", "p50=off", "--guard", "p99=off").stdout
            self.assertIn("40 clients, 240 rows", started)
            self.assertIn("the canary's side: 5% of these rows, 2 of 40 clients", started)
            canary = list_levers(channels[0]).canary
            on_canary = {client: seen for client, seen in epochs(400).items()
                         if canary.epoch in seen}
            self.assertEqual(len(on_canary), 2)
            # All calls of the two but those for whose check there was no room yet: 20 of 400.
            self.assertLessEqual(sum(seen.count(canary.epoch) for seen in on_canary.values()), 20)
            node.fulcrum("levers", "abort", "--reason", "enough")
            self.assertEqual(node.metric("fulcrum_identity_headers_total", result="used"), 520)

    def test_a_weight_that_is_replaced_under_a_canary_begins_its_evidence_again(self):
        with tempfile.TemporaryDirectory(prefix="fulcrum-weights-") as folder:
            weights = []
            for name, value in (("old", 0x38), ("new", 0x30)):  # 1.0 and 0.5 in E4M3
                path = pathlib.Path(folder) / f"{name}.safetensors"
                write_fp8(path, 256, 256, value)
                weights.append(path)
            config = f'weight_roots: "{folder}"\n' + self.config
            with Node(config) as node:
                name = "models/m/shards/w"
                load = ("--tensor", "w", "--family", "ffn_down")
                node.fulcrum("load", "--name", name, "--path", weights[0], *load)
                node.fulcrum("levers", "set", "m16_tc=all", "--canary", "50%", "--by", "batch",
                             "--guard", "p50=off", "--guard", "p99=off", "--guard", "min_samples=20")
                call = request(name, rows=8, k=256, policy=FASTEST)

                def run(batches):
                    channel = node.channel()
                    while list_levers(channel).canary.canary_side.batches < batches:
                        for _ in range(10):
                            project(channel, call)
                run(60)
                node.fulcrum("replace", "--name", name, "--path", weights[1], *load)
                early = node.fulcrum("levers", "promote", check=False)
                self.assertEqual(early.returncode, 1)
                self.assertIn("0 canary and 0 control batches", early.stderr)
                run(60)
                canary = list_levers(node.channel()).canary
                self.assertEqual([(r.shard, r.from_version, r.to_version)
                                  for r in canary.restarts], [(name, 1, 2)])
                # Of the new weight's first 200 all are checked; some may still wait for it.
                self.assertGreater(canary.canary_side.shadow_passed, 0)
                node.fulcrum("levers", "promote", "--reason", "both versions are on record")
                event = json.loads(node.fulcrum("levers", "history", "--json").stdout)["events"][-1]
                self.assertEqual(event["cause"], "promote")
                self.assertRegex(event["evidence"], r"w: version 1 \(hash \w{12}, cpu\S*\) was "
                                                    r"replaced by version 2 \(hash \w{12}")

    def test_a_canary_from_the_command_line_promotes_itself(self):
        with Node(self.config) as node:
            begin = time.monotonic()
            node.fulcrum("levers", "list")
            # Three commands are to run before it ends, each of seconds where a sanitizer watches.
            promote_after = max(2, 6 * (time.monotonic() - begin))
            # Loose limits: how fast this machine is in this moment is not the question here.
            node.fulcrum("levers", "set", "m16_tc=ffn_gate_up", "--canary", "50%", "--by", "batch",
                         "--guard", "p50=off", "--guard", "p99=off", "--guard", "min_samples=20",
                         "--promote-after", f"{promote_after:.1f}s", "--reason", "from a test")
            refused = node.fulcrum("levers", "set", "m16_tc=off", check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("under canary", refused.stderr)
            calls = [request(GATE, rows=8, policy=FASTEST)]
            with Load(node, clients=2, requests=calls):
                watched = node.fulcrum("levers", "watch", "--every", "0.2")
            self.assertIn("promoted", watched.stdout)
            self.assertIn("ffn_gate_up", watched.stdout)
            self.assertEqual(values(node.channel())["m16_tc"], "ffn_gate_up:one_pass")
            events = json.loads(node.fulcrum("levers", "history", "--json").stdout)["events"]
            self.assertEqual([e["cause"] for e in events], ["canary_start", "promote"])
            self.assertEqual({e["reason"] for e in events}, {"from a test"})
            self.assertIn("compared, no breach", events[1]["evidence"])
            self.assertEqual(node.metric("fulcrum_canary_state", state="promoted"), 1)
            self.assertGreater(node.metric("fulcrum_shadow_checks_total", result="pass"), 0)
            self.assertEqual(code_of(project, node.channel(), request()), grpc.StatusCode.OK)


if __name__ == "__main__":
    unittest.main()
