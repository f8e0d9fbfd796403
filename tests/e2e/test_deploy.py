# What deploy/ holds works: configurations parse, alerts pass their own tests where promtool is there,
# the dashboard and manifests are well-formed, the tier table computes what it claims.
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

from node import GATE, Node, SOURCE, project, request

from fulcrum.v1 import node_config_pb2
from google.protobuf import text_format

DEPLOY = SOURCE / "deploy"
sys.path.insert(0, str(DEPLOY))
import tier_table  # noqa: E402


class Files(unittest.TestCase):
    def test_configurations_parse(self):
        texts = {p: p.read_text() for p in DEPLOY.rglob("*.textproto")}
        manifest = DEPLOY / "kubernetes" / "config.yaml"
        block = re.search(r"node\.textproto: \|\n((?:    .*\n|\n)+)", manifest.read_text())
        texts[manifest] = textwrap.dedent(block.group(1))
        self.assertGreaterEqual(len(texts), 4)
        for path, text in texts.items():
            config = text_format.Parse(text, node_config_pb2.NodeConfig())
            self.assertTrue(config.models, path)

    def test_the_example_for_a_cpu_serves(self):
        text = (DEPLOY / "config" / "cpu.textproto").read_text()
        with Node(re.sub(r'^(metrics_)?listen: .*$', r'\1listen: "127.0.0.1:0"', text, flags=re.M)
                  ) as node:
            self.assertEqual(project(node.channel(), request()).outputs[0].n, 1376)

    def test_alerts_pass_their_tests(self):
        promtool = shutil.which("promtool")
        if promtool is None:
            self.skipTest("promtool is not installed")
        for command in (["check", "config", "scrape.yaml"], ["check", "rules", "alerts.yaml"],
                        ["test", "rules", "alerts_test.yaml"]):
            done = subprocess.run([promtool, *command], cwd=DEPLOY / "prometheus",
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_dashboard_is_well_formed(self):
        dashboard = json.loads((DEPLOY / "grafana" / "node.json").read_text())
        ids = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                self.assertIn("fulcrum_", target["expr"])
                self.assertEqual(target["expr"].count("("), target["expr"].count(")"))

    def test_dashboard_shows_canaries_and_shadow_checks(self):
        dashboard = json.loads((DEPLOY / "grafana" / "node.json").read_text())
        shown = " ".join(t["expr"] for p in dashboard["panels"] for t in p["targets"])
        for metric in ("canary_state", "canary_batches_total", "canary_kernel_seconds",
                       "canary_shadow_checks_total", "shadow_checks_total", "shadow_max_ulp",
                       "shadow_worst_element", "shadow_worst_row_rms"):
            self.assertIn(f"fulcrum_{metric}{{", shown)

    def test_dashboard_asks_for_metrics_and_labels_that_there_are(self):
        rows = re.findall(r"^\| `(fulcrum_\w+)` \| (\w+) \|([^|]*)\|",
                          (SOURCE / "README.md").read_text(), re.M)
        labels = {"summary": {"quantile"}, "histogram": {"le"}}
        have = {}
        for name, kind, own in rows:
            for suffix in {"summary": ("", "_sum", "_count"),
                           "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",)):
                have[name + suffix] = ({label.strip() for label in own.split(",")} |
                                       labels.get(kind, set()) | {"instance"})
        dashboard = json.loads((DEPLOY / "grafana" / "node.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                selectors = re.findall(r"(fulcrum_\w+)\{([^}]*)\}", target["expr"])
                self.assertEqual(len(selectors), target["expr"].count("fulcrum_"))
                shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                for name, matchers in selectors:
                    self.assertIn(name, have, panel["title"])
                    asked = set(re.findall(r"(\w+)=", re.sub(r'"[^"]*"', "", matchers)))
                    self.assertLessEqual(asked | shown, have[name], panel["title"])
        for variable in dashboard["templating"]["list"]:
            for name, label in re.findall(r"label_values\((\w+), (\w+)\)", str(variable["query"])):
                self.assertIn(label, next(own for found, own in have.items()
                                          if found.startswith(name)), name)

    def test_dashboard_panels_do_not_overlap(self):
        taken = set()
        for panel in json.loads((DEPLOY / "grafana" / "node.json").read_text())["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                     for y in range(at["y"], at["y"] + at["h"])}
            self.assertTrue(taken.isdisjoint(cells), panel["title"])
            taken |= cells

    def test_scripts_are_valid_shell(self):
        for path in [*DEPLOY.rglob("*.sh"), SOURCE / "tests" / "run.sh", SOURCE / ".ci" / "run"]:
            done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


class TierTable(unittest.TestCase):
    def test_quantiles_are_linear_within_a_bucket(self):
        buckets = {1.0: 10.0, 2.0: 30.0, float("inf"): 40.0}
        self.assertEqual(tier_table.quantile(buckets, 0.25), 1.0)
        self.assertEqual(tier_table.quantile(buckets, 0.5), 1.5)
        self.assertEqual(tier_table.quantile(buckets, 0.99), 2.0)  # in the last: its lower bound
        self.assertIsNone(tier_table.quantile({float("inf"): 0.0}, 0.5))

    def test_rows_of_a_known_scrape(self):
        labels = 'tier="t",phase="ffn"'
        scrape = "\n".join((
            f'fulcrum_launches_total{{{labels},close_reason="full"}} 3',
            f'fulcrum_launches_total{{{labels},close_reason="device_idle"}} 1',
            'fulcrum_launches_total{tier="idle",phase="ffn",close_reason="full"} 0',
            f'fulcrum_rows_total{{{labels},step="decode"}} 10',
            f'fulcrum_weight_bytes_total{{{labels}}} 4e9',
            f'fulcrum_stage_seconds_bucket{{{labels},stage="kernel",le="0.001"}} 4',
            f'fulcrum_stage_seconds_bucket{{{labels},stage="kernel",le="+Inf"}} 4',
            f'fulcrum_stage_seconds_sum{{{labels},stage="kernel"}} 2'))
        head, row = tier_table.table(scrape).splitlines()
        self.assertEqual(row.split()[:6], ["t", "ffn", "4", "10", "2.50", "2.00"])
        self.assertIn("kernel p50/p99", head)
        self.assertIn("500 us / 990 us", row)

    def test_a_real_node(self):
        with Node() as node, tempfile.TemporaryDirectory() as folder:
            project(node.channel(), request(GATE, rows=4))
            done = subprocess.run([sys.executable, DEPLOY / "tier_table.py",
                                   f"http://{node.metrics_address}/metrics"],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("cpu_w8a16_exact  ffn", done.stdout)
            other = pathlib.Path(folder) / "scrape"
            other.write_text("up 1\n")
            done = subprocess.run([sys.executable, DEPLOY / "tier_table.py", other],
                                  capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
