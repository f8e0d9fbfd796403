# The fulcrum command as scripts use it: spellings, exit statuses, JSON fields. Case P010 in small: a
# request with fields of a later revision works.
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import struct
import tempfile
import unittest

from node import DATA, GATE, GATE_K, GATE_N, Node, fulcrum, project, request

FP8 = DATA / "fp8"
Q2 = DATA / "q2_0"


class Offline(unittest.TestCase):
    def verify(self, file, tensor, activations, expect, *more):
        return fulcrum("verify", "--file", file, "--tensor", tensor, "--activations", activations,
                       "--expect", expect, *more, check=False)

    def test_verify_accepts_every_reference_product(self):
        cases = [(f, f.stem + ".weight", f.with_suffix(".x.bf16"), f.with_suffix(".y.f64"))
                 for f in sorted(FP8.glob("*.safetensors"))]
        cases += [(Q2 / "mainline.gguf", f.name[:-len(".y.f64")],
                   f.with_name(f.name[:-len("y.f64")] + "x.bf16"), f)
                  for f in sorted(Q2.glob("*.y.f64"))]
        self.assertGreaterEqual(len(cases), 7)
        for case in cases:
            for policy in ("exact", "batch_invariant", "fastest"):
                done = self.verify(*case, "--policy", policy)
                self.assertEqual(done.returncode, 0, f"{case[1]}\n{done.stdout}{done.stderr}")

    def test_verify_rejects_a_wrong_value_and_bad_input(self):
        file = FP8 / "model.layers.0.self_attn.k_proj.safetensors"
        x, y = file.with_suffix(".x.bf16"), file.with_suffix(".y.f64")
        tensor = file.stem + ".weight"
        with tempfile.TemporaryDirectory() as folder:
            wrong = pathlib.Path(folder) / "wrong.f64"
            values = bytearray(y.read_bytes())
            struct.pack_into("<d", values, 8 * 7, struct.unpack_from("<d", values, 8 * 7)[0] + 1e3)
            wrong.write_bytes(values)
            self.assertEqual(self.verify(file, tensor, x, wrong).returncode, 1)
            short = pathlib.Path(folder) / "short.f64"
            short.write_bytes(values[:-8])
            self.assertEqual(self.verify(file, tensor, x, short).returncode, 2)
        self.assertEqual(self.verify(file, "no.such.tensor", x, y).returncode, 2)
        self.assertEqual(self.verify("/nonexistent", tensor, x, y).returncode, 2)

    def test_inspect_names_what_is_there(self):
        for file, word in ((FP8 / "model.layers.0.mlp.gate_proj.safetensors", "gate_proj"),
                           (Q2 / "mainline.gguf", "blk.0.ffn_up.weight")):
            self.assertIn(word, fulcrum("inspect", file).stdout)
            json.loads(fulcrum("inspect", file, "--json").stdout)
        self.assertNotEqual(fulcrum("inspect", "/nonexistent", check=False).returncode, 0)


class Online(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.node = Node()

    @classmethod
    def tearDownClass(cls):
        with cls.node:
            pass  # stops it and checks its exit status

    def test_shards_json(self):
        shards = json.loads(self.node.fulcrum("shards", "--json").stdout)
        self.assertIsInstance(shards, list)
        by_name = {shard["name"]: shard for shard in shards}
        gate = by_name[GATE]
        for field in ("name", "n", "k", "format", "family", "phase", "device", "bytes", "hash",
                      "state"):
            self.assertIn(field, gate)
        self.assertEqual((gate["n"], gate["k"]), (GATE_N, GATE_K))
        self.assertEqual((gate["format"], gate["family"], gate["phase"]),
                         ("fp8", "ffn_gate_up", "ffn"))
        self.assertEqual(len(gate["hash"]), 64)

    def test_ladder_json_covers_every_row_count(self):
        ladder = json.loads(self.node.fulcrum("ladder", "--shard", GATE, "--json").stdout)
        text = json.dumps(ladder)
        self.assertIn("cpu_w8a16_exact", text)
        self.assertIn("cpu_w8a16_blockfold", text)
        choices = ladder["choices"] if isinstance(ladder, dict) else ladder
        self.assertEqual([c["rows"] for c in choices], list(range(1, 33)))

    def test_bench_json(self):
        result = json.loads(self.node.fulcrum("bench", "--shard", GATE, "--clients", 4, "--rows", 1,
                                              "--seconds", 1, "--json").stdout)
        for field in ("calls_per_s", "rows_per_s", "p50_us", "p90_us", "p99_us", "mean_batch_rows",
                      "row_weighted_batch_rows", "errors", "mismatches"):
            self.assertIn(field, result)
        self.assertEqual((result["errors"], result["mismatches"]), (0, 0))
        self.assertGreater(result["calls_per_s"], 0)
        self.assertLessEqual(result["p50_us"], result["p99_us"])

    def test_levers_set_is_live_and_refuses_nonsense(self):
        message = request(policy=2)
        self.node.fulcrum("levers", "set", "m16_tc=all:one_pass")
        self.assertEqual(project(self.node.channel(), message).outputs[0].arm, "cpu_w8a16_blockfold")
        self.node.fulcrum("levers", "set", "m16_tc=off")
        self.assertEqual(project(self.node.channel(), message).outputs[0].arm, "cpu_w8a16_exact")
        for bad in ("m16_tc=sideways", "no_such_lever=1", "max_batch_rows=33", "nonsense"):
            self.assertNotEqual(self.node.fulcrum("levers", "set", bad, check=False).returncode, 0)

    def test_fields_of_a_later_revision_are_ignored(self):  # P010
        newer = request().SerializeToString() + bytes((0xC2, 0x3E, 3)) + b"new"  # field 1000
        self.assertEqual(project(self.node.channel(), newer).outputs[0].n, GATE_N)


if __name__ == "__main__":
    unittest.main()
