# A real fulcrumd as a subprocess, and calls to it: what every end-to-end test is written with. Waiting
# is always for an event (a log line, a reply, an exit), never for time to pass.
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = SOURCE / "build" / "release"  # by hand; CTest says which build it tests
BIN = pathlib.Path(os.environ.get("FULCRUM_BIN", BUILD / "bin"))
GENERATED = os.environ.get("FULCRUM_PYTHON_PROTO", str(BUILD / "tests" / "e2e" / "proto"))
DATA = SOURCE / "tests" / "data"
LONG = bool(os.environ.get("FULCRUM_LONG_TESTS"))  # soak lengths instead of short ones
PATIENCE = 120  # seconds until a test that hangs fails; generous, for loaded machines

sys.path.insert(0, GENERATED)
import google  # noqa: E402

google.__path__.append(os.path.join(GENERATED, "google"))
import grpc  # noqa: E402
from fulcrum.v1 import (lever_service_pb2, projection_service_pb2, shard_service_pb2,  # noqa: E402
                        types_pb2)

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
             ("grpc.use_local_subchannel_pool", 1))

SMALL = 'models { model: "small" synthetic: "small" }\n'
GATE = "models/small/shards/layers.0.ffn_gate"  # fp8, 1376 x 512
GATE_N, GATE_K = 1376, 512
HEAD = "models/small/shards/lm_head"  # bf16, 2003 x 512
HEAD_N = 2003


def scaled(short, full):
    """Repetitions of a soak: the short version in every run, the full one behind FULCRUM_LONG_TESTS."""
    return full if LONG else short


class Node:
    """with Node() as node: ...   Stopped and checked at the end unless the test stopped it."""

    def __init__(self, config=SMALL, args=(), wait=True, env=None, binary=None):
        self.folder = tempfile.TemporaryDirectory(prefix="fulcrum-e2e-")
        path = pathlib.Path(self.folder.name) / "node.textproto"
        listen = "" if "\nlisten:" in "\n" + config else 'listen: "127.0.0.1:0"\n'
        metrics = "" if "metrics_listen:" in config else 'metrics_listen: "127.0.0.1:0"\n'
        path.write_text(listen + metrics + config)
        self.lines, self.ended = [], False
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            [str(binary or BIN / "fulcrumd"), "--config", str(path), *args],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **(env or {})})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.address = self.metrics_address = None
        if wait:
            self.wait_listening()
            self.wait_line(r"^fulcrumd serving \d+ shards$")

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def log(self):
        with self.changed:
            return "\n".join(self.lines)

    def wait_line(self, pattern):
        """The first log line that matches; fails when the node ends without one."""
        def find():
            return next((m for m in map(re.compile(pattern).search, self.lines) if m), None)
        with self.changed:
            self.changed.wait_for(lambda: find() or self.ended, timeout=PATIENCE)
            match = find()
        if match is None:
            raise AssertionError(f"no log line matches {pattern!r}:\n{self.log()}")
        return match

    def wait_listening(self):
        match = self.wait_line(r"^fulcrumd .* listening on (\S+), metrics on (\S+?)(?:/metrics)?, ")
        self.address, self.metrics_address = match.group(1), match.group(2)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait_exit(self):
        """The exit status, once the process and its log have ended."""
        try:
            status = self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"fulcrumd did not end:\n{self.log()}") from None
        self.reader.join(PATIENCE)
        return status

    def stop(self):
        self.terminate()
        return self.wait_exit()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        try:
            if self.process.poll() is None:
                status = self.stop()
                if kind is None and status != 0:
                    raise AssertionError(f"exit status {status}:\n{self.log()}")
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.stdout.close()
            self.folder.cleanup()

    # What the node says of itself.

    def scrape(self):
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=PATIENCE) as r:
            return r.read().decode()

    def metric(self, name, **labels):
        """The sum of a metric's samples that carry the labels."""
        total = 0.0
        for line in self.scrape().splitlines():
            match = re.match(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match and match.group(1) == name:
                have = dict(re.findall(r'(\w+)="([^"]*)"', match.group(2) or ""))
                if all(have.get(k) == v for k, v in labels.items()):
                    total += float(match.group(3))
        return total

    def resident_bytes(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    # Calls.

    def channel(self, options=UNLIMITED, credentials=None):
        if credentials:
            return grpc.secure_channel(self.address, credentials, options=options)
        return grpc.insecure_channel(self.address, options=options)

    def fulcrum(self, *args, check=True):
        """Runs the command against this node."""
        return fulcrum("--target", self.address, *args, check=check)


def fulcrum(*args, check=True):
    done = subprocess.run([str(BIN / "fulcrum"), *map(str, args)], capture_output=True, text=True,
                          timeout=PATIENCE * 5)
    if check and done.returncode != 0:
        raise AssertionError(f"fulcrum {' '.join(map(str, args))}: exit {done.returncode}\n"
                             f"{done.stdout}{done.stderr}")
    return done


def request(shard=GATE, rows=1, k=GATE_K, seed=1, **fields):
    """A Project request of `rows` reproducible BF16 rows with values between -2 and 2."""
    return projection_service_pb2.ProjectRequest(
        shards=[shard], rows=rows, activations=activations(rows, k, seed), **fields)


def activations(rows, k, seed=1):
    # 0x3f80 is 1.0; the mantissa and sign come from a small multiplicative generator.
    out, state = bytearray(), seed * 2654435761 % 2**32
    for _ in range(rows * k):
        state = (state * 1664525 + 1013904223) % 2**32
        bits = 0x3F80 | (state >> 16 & 0x7F) | (state >> 31 << 15)
        out += bytes((bits & 0xFF, bits >> 8))
    return bytes(out)


def method(channel, service, name, reply, kind="unary_unary"):
    return getattr(channel, kind)(
        f"/fulcrum.v1.{service}/{name}",
        request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
        response_deserializer=reply.FromString)


def project(channel, message, timeout=PATIENCE, **kwargs):
    call = method(channel, "ProjectionService", "Project", projection_service_pb2.ProjectResponse)
    return call(message, timeout=timeout, **kwargs)


def project_future(channel, message, timeout=PATIENCE):
    call = method(channel, "ProjectionService", "Project", projection_service_pb2.ProjectResponse)
    return call.future(message, timeout=timeout)


def stream(channel, requests, timeout=PATIENCE):
    call = method(channel, "ProjectionService", "ProjectStream",
                  projection_service_pb2.ProjectStreamResponse, "stream_stream")
    return call(requests, timeout=timeout)


def set_levers(channel, reason="test", **values):
    call = method(channel, "LeverService", "SetLevers", lever_service_pb2.SetLeversResponse)
    assignments = [lever_service_pb2.LeverAssignment(name=n, value=v) for n, v in values.items()]
    return call(lever_service_pb2.SetLeversRequest(assignments=assignments, reason=reason),
                timeout=PATIENCE)


def code_of(action, *args, **kwargs):
    """The status code an RPC ends with."""
    try:
        action(*args, **kwargs)
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()


def list_shards(channel):
    call = method(channel, "ShardService", "ListShards", shard_service_pb2.ListShardsResponse)
    return call(shard_service_pb2.ListShardsRequest(), timeout=PATIENCE).shards


assert types_pb2.POLICY_EXACT == 1  # the generated modules are those of this tree
