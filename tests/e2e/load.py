# Background load: client threads that call a node until told to stop, and remember how every call
# ended.
# SPDX-License-Identifier: Apache-2.0
import collections
import threading

import grpc
from node import project, request


class Load:
    """with Load(node, clients=8) as load: ...   `codes` counts status codes, `replies` OK replies."""

    def __init__(self, node, clients=4, requests=None, timeout=30):
        self.requests = requests or [request(rows=1 + i % 4, seed=i) for i in range(8)]
        self.timeout = timeout
        self.codes, self.details = collections.Counter(), []
        self.lock, self.progress = threading.Lock(), threading.Condition()
        self.stopping = threading.Event()
        self.channels = [node.channel() for _ in range(clients)]
        self.threads = [threading.Thread(target=self._run, args=(channel, i), daemon=True)
                        for i, channel in enumerate(self.channels)]
        for thread in self.threads:
            thread.start()

    def _run(self, channel, offset):
        index = offset
        while not self.stopping.is_set():
            try:
                project(channel, self.requests[index % len(self.requests)], timeout=self.timeout)
                code, detail = grpc.StatusCode.OK, ""
            except grpc.RpcError as error:
                code, detail = error.code(), error.details()
            with self.progress:
                self.codes[code] += 1
                if code != grpc.StatusCode.OK:
                    self.details.append(f"{code.name}: {detail}")
                self.progress.notify_all()
            if code == grpc.StatusCode.UNAVAILABLE:
                return  # the node is gone or going; another one would be called now
            index += 1

    def wait_for(self, calls, timeout=120):
        """Blocks until that many calls have ended OK since the start."""
        with self.progress:
            reached = self.progress.wait_for(
                lambda: self.codes[grpc.StatusCode.OK] >= calls, timeout=timeout)
        if not reached:
            raise AssertionError(f"only {dict(self.codes)} calls ended; {self.details[:3]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
        for channel in self.channels:
            channel.close()
