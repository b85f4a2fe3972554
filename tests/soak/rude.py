"""An ill-behaved client of the soak test: `rude.py SOCKET SEED SECONDS`. It never gets a wrong answer, because it waits
for few: it half-closes with work under way, sends half a message and goes, does not read, sends garbage, registers and
leaves without a word. Status 1 when an answer that it does wait for is wrong.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import memfd, raw

N = 4096


class Rude:
    def __init__(self, path: str, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.times = 0

    def connect(self) -> tuple[raw.Connection, memfd.Shared, dict, dict, dict]:
        connection = raw.Connection(self.path)
        shared = memfd.Shared(3 * 4 * N)
        buffer = connection.register(shared)
        return connection, shared, *(raw.tensor(buffer, [N], offset=4 * N * i) for i in range(3))

    def half_closed(self) -> None:
        connection, shared, a, b, out = self.connect()
        for _ in range(self.random.randrange(1, 40)):
            connection.request("run", {"op": "add", "in": [a, b], "out": [out], "repeat": self.random.randrange(1, 50)})
        connection.socket.shutdown(socket.SHUT_WR)
        connection.wait_closed()
        connection.close()

    def half_a_message(self) -> None:
        connection, shared, a, b, out = self.connect()
        message = raw.pack_request(7, "run", {"op": "add", "in": [a, b], "out": [out]})
        connection.send(message[: self.random.randrange(1, len(message))])
        connection.close()

    def unread(self) -> None:
        connection, shared, *_ = self.connect()
        connection.socket.settimeout(0.2)
        data = b"".join(raw.pack_request(i, "ping", {"x": "y" * 500}) for i in range(self.random.randrange(1, 3000)))
        try:
            connection.send(data)
        except TimeoutError:
            pass  # the daemon does not read on, as it should
        connection.close()

    def garbage(self) -> None:
        connection, shared, *_ = self.connect()
        connection.send(self.random.randbytes(self.random.randrange(1, 5000)))
        connection.socket.shutdown(socket.SHUT_WR)
        connection.wait_closed()
        connection.close()

    def gone(self) -> None:
        connection, shared, a, b, out = self.connect()
        for i in range(8):
            connection.call("alloc", {"size": 100_000})
            connection.request("run", {"op": "square", "in": [a], "out": [out], "stream": i, "repeat": 200})
        connection.close()

    def right(self) -> None:
        """An answer in between: all that happened has harmed nobody."""
        connection, shared, a, b, out = self.connect()
        values = shared.view(np.float32, 3 * N).reshape(3, N)
        values[0], values[1] = np.arange(N) % 17, np.arange(N) % 23
        connection.run("add", [a, b], [out])
        if not np.array_equal(values[2], values[0] + values[1]):
            raise SystemExit("add of a raw connection: a wrong answer")
        connection.close()

    def turn(self) -> None:
        kinds: list[Callable[[], None]] = [
            self.half_closed, self.half_a_message, self.unread, self.garbage, self.gone, self.right,
        ]  # fmt: skip
        self.random.choice(kinds)()
        self.times += 1


def main() -> int:
    rude = Rude(sys.argv[1], int(sys.argv[2]))
    until = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < until:
        rude.turn()
        time.sleep(rude.random.random() * 0.2)  # a load, not a wait
    print(json.dumps({"times": rude.times}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
