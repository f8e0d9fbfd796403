# A TCP relay that can be told to stop: what a network, or a client that dies, does to a node in the
# middle of a message.
# SPDX-License-Identifier: Apache-2.0
import socket
import struct
import threading


class HalfwayProxy:
    """Relays to `target`; towards it, holds back everything after `limit` bytes (None: nothing).
    `held` is set when that happens; release() lets the rest through, reset() ends both sides with a TCP reset."""

    def __init__(self, target, limit):
        host, port = target.rsplit(":", 1)
        self.target, self.limit = (host, int(port)), limit
        self.held, self.go = threading.Event(), threading.Event()
        self.sockets, self.threads, self.accepted = [], [], 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._start(self._accept)

    def _start(self, function, *args):
        thread = threading.Thread(target=function, args=args, daemon=True)
        thread.start()
        self.threads.append(thread)

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.target)
            except OSError:
                return
            self.accepted += 1
            self.sockets += [client, server]
            self._start(self._relay, client, server, self.limit)
            self._start(self._relay, server, client, None)

    def _relay(self, source, sink, limit):
        sent = 0
        try:
            while data := source.recv(65536):
                if limit is not None and sent + len(data) > limit and not self.go.is_set():
                    sink.sendall(data[:limit - sent])
                    sent, data = limit, data[limit - sent:]
                    self.held.set()
                    self.go.wait()
                sink.sendall(data)
                sent += len(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def release(self):
        self.go.set()

    def reset(self):
        self.close(linger=struct.pack("ii", 1, 0))  # close() then sends a reset

    def close(self, linger=None):
        self.listener.close()
        for s in self.sockets:
            try:
                if linger:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                s.shutdown(socket.SHUT_RD) if linger else s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        self.go.set()
