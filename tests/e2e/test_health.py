# The standard health service as probes and watchers use it: under full load, and over the life of a
# shard and of the node; and how a node ends that cannot go on. Cases P090, P092, P098.
# SPDX-License-Identifier: Apache-2.0
import threading
import unittest

import grpc
from load import Load
from node import (DATA, GATE, HEAD, Node, PATIENCE, SMALL, code_of, method, project, request, scaled,
                  shard_service_pb2)
from test_lifecycle import health

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Health(unittest.TestCase):
    def test_probes_under_full_load_see_no_flap(self):  # P090
        heavy = [request(HEAD, rows=32), request(GATE, rows=32), request(HEAD, rows=512, step=2)]
        with Node() as node:
            channel, seen = node.channel(), []
            watch = health(channel, kind="Watch")
            seen.append(next(watch))

            def follow():
                try:
                    seen.extend(watch)
                except grpc.RpcError:
                    return  # cancelled below
            follower = threading.Thread(target=follow)
            follower.start()
            with Load(node, clients=8, requests=heavy, timeout=PATIENCE) as load:
                load.wait_for(8)
                for _ in range(scaled(100, 2000)):
                    for name in ("", "fulcrum.v1.ProjectionService", GATE):
                        self.assertEqual(health(channel, name), SERVING, name)
                load.wait_for(scaled(100, 2000))
            self.assertEqual(set(load.codes), {grpc.StatusCode.OK}, load.details[:3])
            watch.cancel()
            follower.join(PATIENCE)
            self.assertEqual(seen, [SERVING])

    def test_a_watch_follows_a_shard_through_its_life(self):  # P092
        file = DATA / "fp8" / "model.layers.0.mlp.gate_proj.safetensors"
        name = "models/extra/shards/gate"
        with Node(f'weight_roots: "{file.parent}"\n' + SMALL) as node:
            channel = node.channel()
            load = method(channel, "ShardService", "LoadShard", shard_service_pb2.Shard)
            unload = method(channel, "ShardService", "UnloadShard",
                            shard_service_pb2.UnloadShardResponse)
            self.assertEqual(code_of(health, channel, name), grpc.StatusCode.NOT_FOUND)
            watch, whole = health(channel, name, "Watch"), health(channel, kind="Watch")
            self.assertEqual((next(watch), next(whole)), (SERVICE_UNKNOWN, SERVING))
            load(shard_service_pb2.LoadShardRequest(name=name, file=shard_service_pb2.WeightFile(
                path=str(file), tensor=file.stem + ".weight")), timeout=PATIENCE)
            self.assertEqual(health(channel, name), SERVING)
            self.until(watch, SERVING, through={NOT_SERVING})  # while it loaded
            unload(shard_service_pb2.UnloadShardRequest(name=name), timeout=PATIENCE)
            self.until(watch, NOT_SERVING, through=set())
            self.assertEqual(health(channel, name), NOT_SERVING)
            self.assertEqual(code_of(project, channel, request()), grpc.StatusCode.OK)
            node.terminate()
            self.until(whole, NOT_SERVING, through=set())  # the first change of the node itself
            self.assertEqual(node.wait_exit(), 0, node.log())

    def test_a_node_that_cannot_go_on_says_so_and_exits_with_one(self):  # P098
        # The way that a lost device takes too: not the operator's stop, and not a quiet one.
        file = DATA / "fp8" / "model.layers.0.mlp.gate_proj.safetensors"
        config = SMALL + f'''models {{ model: "x" shards {{ shard {{
            name: "gate" path: "{file}" tensor: "{file.stem}.weight" expect_hash: "{"0" * 64}" }} }} }}
            '''
        node = Node(config, wait=False)
        self.assertEqual(node.wait_exit(), 1, node.log())
        self.assertIn("models/x/shards/gate", node.lines[-1])
        node.process.stdout.close()
        node.folder.cleanup()

    def until(self, watch, state, through):
        """Reads the watch until it says `state`; before that only states in `through` may come."""
        for now in watch:
            if now == state:
                return
            self.assertIn(now, through)
        self.fail(f"the watch ended before it said {state}")


if __name__ == "__main__":
    unittest.main()
