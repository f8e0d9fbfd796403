# The metrics of a running node: the names and types are README's table (which deploy/ is held to),
# every series is there before the first call, and one known load gives known numbers. Cases P078,
# P080, P081, P084, P085, P088.
# SPDX-License-Identifier: Apache-2.0
import collections
import http.client
import math
import re
import threading
import unittest

from node import (DATA, GATE, Node, PATIENCE, SMALL, SOURCE, method, project, request, scaled,
                  shard_service_pb2)


FASTEST = 3


def exposed(text):
    """{name: type}, without what the exposer of prometheus-cpp says of itself."""
    types = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M)
    return {name: kind for name, kind in types if not name.startswith("exposer_")}


class Metrics(unittest.TestCase):
    maxDiff = None

    def test_names_types_and_labels_are_readmes(self):  # P078
        rows = re.findall(r"^\| `((?:fulcrum|grpc)_\w+)` \| (\w+) \|([^|]*)\|",
                          (SOURCE / "README.md").read_text(), re.M)
        self.assertGreater(len(rows), 20)
        with Node() as node:
            project(node.channel(), request())
            # What compares control and canary is there from the first batch that was compared.
            node.fulcrum("levers", "set", "m16_tc=all", "--canary", "99%", "--by", "batch")
            for _ in range(20):
                project(node.channel(), request(rows=8, policy=FASTEST))
            text = node.scrape()
        self.assertEqual(exposed(text), {name: kind for name, kind, _ in rows})
        for name, kind, labels in rows:
            expected = {label.strip() for label in labels.split(",") if label.strip()}
            suffix = "_count" if kind in ("histogram", "summary") else ""
            for found in re.findall(rf"^{name}{suffix}(?:{{(.*)}})? ", text, re.M):
                self.assertEqual({k for k, _ in re.findall(r'(\w+)="([^"]*)"', found)}, expected, name)

    def test_every_tier_and_phase_is_there_at_zero(self):  # P081
        with Node() as node:
            text = node.scrape()
        series = re.findall(r'^fulcrum_launches_total\{(.*)\} (\S+)$', text, re.M)
        self.assertTrue(series)
        self.assertEqual({value for _, value in series}, {"0"})
        tiers = {re.search(r'tier="(\w+)"', labels).group(1) for labels, _ in series}
        phases = {re.search(r'phase="(\w+)"', labels).group(1) for labels, _ in series}
        reasons = {re.search(r'close_reason="(\w+)"', labels).group(1) for labels, _ in series}
        self.assertEqual(len(series), len(tiers) * len(phases) * len(reasons))
        self.assertEqual(phases, {"attention", "ssm", "ffn", "moe", "lm_head", "other"})

    def test_calls_rows_and_launches_are_different_things(self):  # P080
        with Node() as node:
            channel = node.channel()
            project(channel, request(rows=8))
            project(channel, request(rows=1))
            self.assertEqual(node.metric("fulcrum_calls_total", method="Project", code="OK"), 2)
            self.assertEqual(node.metric("fulcrum_rows_total", phase="ffn", step="decode"), 9)
            self.assertEqual(node.metric("fulcrum_launches_total", phase="ffn"), 2)
            self.assertEqual(node.metric("fulcrum_batch_rows_sum", phase="ffn"), 9)
            self.assertEqual(node.metric("fulcrum_batch_rows_count", phase="ffn"), 2)
            self.assertEqual(node.metric("fulcrum_inflight_calls"), 0)
            self.assertEqual(node.metric("fulcrum_queue_rows"), 0)
            self.assertEqual(
                node.metric("grpc_server_handled_total", grpc_method="Project", grpc_code="OK"), 2)
            shard_bytes = 1376 * 512 + 11 * 4 * 4  # codes and the scale grid
            read = node.metric("fulcrum_weight_bytes_total", phase="ffn")
            self.assertGreaterEqual(read, 2 * shard_bytes)

    def test_scrapes_are_whole_while_shards_come_and_go(self):  # P088
        file = DATA / "fp8" / "model.layers.0.mlp.gate_proj.safetensors"
        name = "models/extra/shards/gate"
        with Node(f'weight_roots: "{file.parent}"\n' + SMALL) as node:
            channel = node.channel()
            load = method(channel, "ShardService", "LoadShard", shard_service_pb2.Shard)
            unload = method(channel, "ShardService", "UnloadShard",
                            shard_service_pb2.UnloadShardResponse)
            project(channel, request())
            series = self.series(node.scrape())
            stop, pages, failures = threading.Event(), [], []

            def scrape():
                try:
                    while not stop.is_set():
                        pages.append(self.series(node.scrape()))
                except Exception as error:  # noqa: BLE001  a thread's failure is the test's
                    failures.append(repr(error))
            scrapers = [threading.Thread(target=scrape) for _ in range(2)]
            for scraper in scrapers:
                scraper.start()
            for _ in range(scaled(30, 500)):
                load(shard_service_pb2.LoadShardRequest(
                    name=name, file=shard_service_pb2.WeightFile(
                        path=str(file), tensor=file.stem + ".weight")), timeout=PATIENCE)
                unload(shard_service_pb2.UnloadShardRequest(name=name), timeout=PATIENCE)
            stop.set()
            for scraper in scrapers:
                scraper.join(PATIENCE)
            self.assertEqual(failures, [])
            self.assertGreater(len(pages), 5)
            # No series is made for a shard, and none goes with it.
            self.assertEqual([page ^ series for page in pages if page != series], [])

    @staticmethod
    def series(text):
        """Names and labels of the node's counters and gauges; a histogram comes when it is observed."""
        plain = {name for name, kind in exposed(text).items() if kind in ("counter", "gauge")}
        return {m.group(1) for m in re.finditer(r"^((\w+)(?:\{.*\})?) \S+$", text, re.M)
                if m.group(2) in plain}

    def test_head_gives_the_headers_and_makes_no_scrape(self):
        with Node() as node:
            def ask(method, path):
                connection = http.client.HTTPConnection(node.metrics_address, timeout=PATIENCE)
                connection.request(method, path)
                reply = connection.getresponse()
                body = reply.read()
                connection.close()
                return reply.status, reply.getheader("Content-Type"), len(body) > 0
            status, kind, has_body = ask("GET", "/metrics")
            self.assertEqual((status, has_body), (200, True))
            for path in ("/metrics", "/metrics?name=x") * 5:
                self.assertEqual(ask("HEAD", path), (200, kind, False))
            self.assertEqual(ask("HEAD", "/nothing")[0], 404)
            self.assertEqual(ask("POST", "/metrics")[0], 404)
            self.assertLessEqual(node.metric("exposer_scrapes_total"), 1)

    def test_histograms_are_cumulative(self):  # P085
        with Node() as node:
            for rows in range(1, 20):
                project(node.channel(), request(GATE, rows=rows))
            text = node.scrape()
        buckets, counts = collections.defaultdict(list), {}
        for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.M):
            if name.endswith("_bucket"):
                bound = float(re.search(r'le="([^"]+)"', labels).group(1))
                key = (name[:-7], re.sub(r',?le="[^"]*"', "", labels))
                buckets[key].append((bound, float(value)))
            elif name.endswith("_count"):
                counts[name[:-6], labels] = float(value)
        self.assertTrue(buckets)
        for key, series in buckets.items():
            self.assertEqual([b for b, _ in series], sorted(b for b, _ in series), key)
            self.assertEqual([c for _, c in series], sorted(c for _, c in series), key)
            self.assertEqual(series[-1][0], math.inf, key)
            self.assertLessEqual(series[-1][1] - series[-2][1], series[-1][1] / 100, key)  # P084
            self.assertEqual(series[-1][1], counts[key], key)


if __name__ == "__main__":
    unittest.main()
