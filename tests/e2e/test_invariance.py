# Batch-mates cannot change a caller's bits: fixed calls among random co-traffic while levers flip.
# EXACT must give the same bytes always; BATCH_INVARIANT the same bytes within one lever epoch. Also
# that every reply's provenance is what its epoch says. Cases P117 (live), P152.
# SPDX-License-Identifier: Apache-2.0
import collections
import random
import threading
import unittest

from node import Node, list_shards, project, request, scaled, set_levers

EXACT, BATCH_INVARIANT, FASTEST = 1, 2, 3
CLASS_EXACT = 1
M16_TC = ("off", "all:one_pass", "ffn_gate_up:one_pass,lm_head:m16", "attn_qkv:m16_n64",
          "ffn_down:one_pass,ssm_in:one_pass")


class BatchInvariance(unittest.TestCase):
    def test_no_bit_depends_on_batch_mates_or_levers(self):
        calls = scaled(1000, 10000)
        with Node() as node:
            shards = sorted(list_shards(node.channel()), key=lambda s: s.name)
            fixed = [request(s.name, rows, s.k, seed=rows)
                     for s in shards for rows in (1, 3)]
            alone = [bytes(project(node.channel(), self.with_policy(f, EXACT)).outputs[0].data)
                     for f in fixed]
            mates = [request(s.name, rows, s.k, seed=100 + i)
                     for s in shards for i, rows in enumerate((1, 2, 5, 16, 32))]
            stop, failures = threading.Event(), []
            seen = collections.defaultdict(set)  # (fixed call, epoch) -> what BATCH_INVARIANT gave
            classes = collections.defaultdict(set)
            batches = collections.Counter()
            lock = threading.Lock()

            def guarded(function, *args):
                try:
                    function(*args)
                except Exception as error:  # noqa: BLE001  a thread's failure is the test's
                    failures.append(repr(error))
                    stop.set()

            def mate(seed):
                dice, channel = random.Random(seed), node.channel()
                while not stop.is_set():
                    project(channel, self.with_policy(dice.choice(mates), dice.choice((1, 2, 3))))

            def flip():
                dice, channel = random.Random(99), node.channel()
                while not stop.is_set():
                    set_levers(channel, m16_tc=dice.choice(M16_TC),
                               max_batch_rows=str(dice.choice((1, 7, 32))),
                               coalesce_window_us=str(dice.choice((0, 0, 500))))

            def check(seed, count):
                dice, channel = random.Random(seed), node.channel()
                for _ in range(count):
                    index, policy = dice.randrange(len(fixed)), dice.choice((EXACT, BATCH_INVARIANT))
                    reply = project(channel, self.with_policy(fixed[index], policy))
                    data, epoch = bytes(reply.outputs[0].data), reply.provenance.lever_epoch
                    with lock:
                        batches[reply.provenance.batch_rows] += 1
                        if policy == EXACT:
                            if data != alone[index]:
                                failures.append(f"EXACT changed: {fixed[index].shards[0]}")
                            if reply.outputs[0].numerics != CLASS_EXACT:
                                failures.append(f"EXACT ran {reply.outputs[0].arm}")
                        else:
                            seen[index, epoch].add(data)
                            classes[fixed[index].shards[0], epoch].add(reply.outputs[0].numerics)

            threads = [threading.Thread(target=guarded, args=(mate, s)) for s in range(3)]
            threads.append(threading.Thread(target=guarded, args=(flip,)))
            checkers = [threading.Thread(target=guarded, args=(check, 1000 + s, calls // 4))
                        for s in range(4)]
            for thread in threads + checkers:
                thread.start()
            for thread in checkers:
                thread.join()
            stop.set()
            for thread in threads:
                thread.join()

            self.assertEqual(failures[:5], [])
            self.assertEqual(sum(batches.values()), calls // 4 * 4)
            self.assertEqual([k for k, v in seen.items() if len(v) != 1], [])
            self.assertEqual([k for k, v in classes.items() if len(v) != 1], [])
            # The run must have met what it is about: shared batches, several epochs, both classes.
            self.assertGreater(len([rows for rows in batches if rows > 3]), 0, batches)
            self.assertGreater(len({epoch for _, epoch in seen}), 10)
            self.assertGreater(len({c for v in classes.values() for c in v}), 1)

    @staticmethod
    def with_policy(message, policy):
        copy = type(message)()
        copy.CopyFrom(message)
        copy.policy = policy
        return copy


if __name__ == "__main__":
    unittest.main()
