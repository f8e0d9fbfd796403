#!/usr/bin/env python3
# The tier x phase table of a running node, from its Prometheus endpoint: launches, rows, rows a
# launch, p50/p99 of each stage, and the rate at which weights were read. Standard library only.
# SPDX-License-Identifier: Apache-2.0
"""usage: tier_table.py http://127.0.0.1:9464/metrics   (or a file with a scrape)"""
import collections
import math
import re
import sys
import urllib.request

STAGES = ("admit", "queue", "gather", "copy_in", "kernel", "copy_out", "reply")
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read(source):
    if source.startswith(("http://", "https://")):
        with urllib.request.urlopen(source, timeout=10) as reply:
            return reply.read().decode()
    with open(source, encoding="utf-8") as file:
        return file.read()


def samples(text):
    """(name, {label: value}, number) of every sample line."""
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match and not line.startswith("#"):
            yield match.group(1), dict(LABEL.findall(match.group(2) or "")), float(match.group(3))


def quantile(buckets, q):
    """The q-quantile of cumulative buckets {upper bound: count}, linear within a bucket; None without
    observations. Above the last finite bound, that bound."""
    total = buckets.get(math.inf, 0)
    if total == 0:
        return None
    below_bound, below_count = 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= q * total:
            if math.isinf(bound):
                return below_bound
            inside = buckets[bound] - below_count
            part = (q * total - below_count) / inside if inside > 0 else 1.0
            return below_bound + (bound - below_bound) * part
        below_bound, below_count = bound, buckets[bound]
    return below_bound


def duration(seconds):
    """Three significant digits with a unit."""
    if seconds is None:
        return "-"
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.2g} us"


def collect(text):
    """{(tier, phase): row} of the tiers that launched anything, and the stages any of them has."""
    rows = collections.defaultdict(lambda: collections.defaultdict(float))
    buckets = collections.defaultdict(dict)
    for name, labels, value in samples(text):
        key = (labels.get("tier"), labels.get("phase"))
        if name == "fulcrum_launches_total":
            rows[key]["launches"] += value
        elif name == "fulcrum_rows_total":
            rows[key]["rows"] += value
        elif name == "fulcrum_weight_bytes_total":
            rows[key]["bytes"] += value
        elif name == "fulcrum_stage_seconds_sum":
            rows[key][labels["stage"]] += value
        elif name == "fulcrum_stage_seconds_bucket":
            buckets[key + (labels["stage"],)][float(labels["le"])] = value
    ran = {key: row for key, row in rows.items() if row["launches"] > 0}
    stages = [s for s in STAGES if any(row[s] > 0 for row in ran.values())]  # copies: GPU alone
    return ran, stages, buckets


def table(text):
    ran, stages, buckets = collect(text)
    head = ["tier", "phase", "launches", "rows", "rows/launch", "GB/s"]
    head += [f"{stage} p50/p99" for stage in stages]
    body = []
    for (tier, phase), row in sorted(ran.items()):
        seconds = row["kernel"]
        cells = [tier, phase, f"{row['launches']:.0f}", f"{row['rows']:.0f}",
                 f"{row['rows'] / row['launches']:.2f}",
                 f"{row['bytes'] / seconds / 1e9:.2f}" if seconds > 0 else "-"]
        for stage in stages:
            stage_buckets = buckets[(tier, phase, stage)]
            cells.append(f"{duration(quantile(stage_buckets, 0.5))} / "
                         f"{duration(quantile(stage_buckets, 0.99))}")
        body.append(cells)
    widths = [max(len(line[i]) for line in [head] + body) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w)
                  for i, (cell, w) in enumerate(zip(line, widths))).rstrip()
        for line in [head] + body)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        text = read(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(f"tier_table: {sys.argv[1]}: {error}")
    if not any(name == "fulcrum_launches_total" for name, _, _ in samples(text)):
        sys.exit(f"tier_table: {sys.argv[1]}: no fulcrum_launches_total; is this a Fulcrum node?")
    print(table(text))


if __name__ == "__main__":
    main()
