"""A receiver of effects in a process of its own: it survives the workers, and kills them."""

import asyncio
import json
import os
import signal
import socket
from collections import Counter
from contextlib import contextmanager, suppress

from tests.support.fork_server import processes

__all__ = ["Receiver", "send"]


class Receiver:
    """The parent's view of the receiver."""

    def __init__(self, process, port):
        self.process = process
        self.port = port

    @classmethod
    @contextmanager
    def started(cls, signals=(), stall=None, second=None):
        """A receiver that runs as long as the block does.

        :param signals: a signal by the number of the arrival from which a worker gets it.
        :param stall: seconds between SIGSTOP and SIGCONT.
        :param second: seconds after which a worker gets its signal a second time.
        """
        here, there = processes.Pipe()
        process = processes.Process(target=serve, args=(there, dict(signals), stall, second))
        process.start()
        there.close()
        try:
            yield cls(process, here.recv())
        finally:
            process.kill()
            process.join()
            here.close()

    def report(self):
        """The keys, arrivals, attempts and attributed crashes by message."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall(b'{"report": true}\n')
            return json.loads(connection.makefile().readline())


async def send(port, **effect):
    """Report an effect, and wait until it is stored."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(json.dumps(effect | {"pid": os.getpid()}).encode() + b"\n")
        if await reader.readline() != b"ok\n":
            raise ConnectionError("the receiver did not answer")
    finally:
        writer.close()


def serve(parent, *settings):
    asyncio.run(Effects(*settings).serve(parent))


class Effects:
    """The receiver's side."""

    def __init__(self, signals, stall, second):
        self.signals = sorted(signals.items())
        self.stall = stall
        self.second = second
        self.arrivals = 0
        self.keys = {}
        self.by_body = Counter()
        self.crashes = Counter()
        self.attempts = Counter()
        self.workers = []
        self.known = set()

    async def serve(self, parent):
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        parent.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    async def handle(self, reader, writer):
        with suppress(ConnectionError):  # of a worker that was killed
            line = await reader.readline()
            if line.endswith(b"\n"):
                answer = self.receive(json.loads(line))
                writer.write(answer.encode() + b"\n")
                await writer.drain()
        writer.close()

    def receive(self, effect):
        if "report" in effect:
            names = "arrivals", "keys", "by_body", "crashes", "attempts"
            return json.dumps({name: getattr(self, name) for name in names})
        body, key, pid = effect["body"], effect["key"], effect["pid"]
        self.arrivals += 1
        self.by_body[body] += 1
        if key not in self.keys.setdefault(body, []):
            self.keys[body].append(key)
        self.crashes[body] = max(self.crashes[body], effect["crashes"])
        self.attempts[body] = max(self.attempts[body], effect["attempt"])
        if pid not in self.known:
            self.known.add(pid)
            self.workers.append(pid)
        if self.signals and self.arrivals >= self.signals[0][0]:
            self.send_signal(pid)
        return "ok"

    def send_signal(self, sender):
        """Signal a worker that had no signal yet; one that has ended is skipped."""
        if self.stall is not None:
            os.kill(sender, self.signals.pop()[1])
            loop = asyncio.get_running_loop()
            loop.call_later(self.stall, os.kill, sender, signal.SIGCONT)  # the lease has ended
            return
        while self.workers:
            pid = self.workers.pop(self.arrivals % len(self.workers))
            with suppress(ProcessLookupError):
                number = self.signals[0][1]
                os.kill(pid, number)
                del self.signals[0]
                if self.second is not None:
                    loop = asyncio.get_running_loop()
                    loop.call_later(self.second, send_if_running, pid, number)
                return


def send_if_running(pid, number):
    with suppress(ProcessLookupError):
        os.kill(pid, number)
