"""Processes of a scenario: started on their core, waited for, and ended with it; what they say is kept for when they fail."""
import contextlib
import os
import signal
import socket
import subprocess
import time

START_S, STOP_S = 40, 1


class Process:
    """A process that listens on a port."""

    def __init__(self, name, argv, cores, folder, port):
        self.name, self.port = name, port
        self.log = os.path.join(folder, name.replace("/", "-").replace(" ", "-") + ".log")
        env = {**os.environ, "NO_PROXY": "*", "no_proxy": "*"}
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                          preexec_fn=lambda: os.sched_setaffinity(0, cores))
        self.pid = self.child.pid

    def stop(self, patience=STOP_S):
        """Nothing is in flight any more, so a long farewell is cut short."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(patience)
            except subprocess.TimeoutExpired:
                self.child.kill()
        self.child.wait()

    def until_up(self):
        """Waits until it listens."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.child.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} does not listen: {self.said()}")

    def until_ready(self):
        """Waits until it answers a completion, for those that look at their engines first."""
        body = b'{"model":"tiny","prompt":"1000000 1","max_tokens":1,"stream":false}'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        end, got = time.monotonic() + START_S, b""
        while time.monotonic() < end and self.child.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 2) as peer:
                peer.settimeout(5)
                peer.sendall(head % len(body) + body)
                got = peer.recv(4096)
                if got.startswith(b"HTTP/1.1 200"):
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} does not answer: {got[:300]!r} {self.said()}")

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()[-2000:]

    def use_only_child(self):
        """Its work is done by its one child (nginx: the worker)."""
        end = time.monotonic() + START_S
        path = f"/proc/{self.child.pid}/task/{self.child.pid}/children"
        while time.monotonic() < end:
            with open(path, encoding="ascii") as children:
                pids = children.read().split()
            if len(pids) == 1:
                self.pid = int(pids[0])
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} has no single worker")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
