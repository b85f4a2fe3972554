"""A terminal of some size for a program, and what stands on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping

from support import raw

# What a "vt100" without colours sends: moves, erasing, attributes, character sets.
SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b([()].|[=>78M])|([\x08\r\n\x0e\x0f\x07])|([^\x1b\x08\r\n\x0e\x0f\x07]+)")


class Terminal:
    def __init__(self, command: list[str], env: Mapping[str, str], rows: int = 30, columns: int = 150) -> None:
        self.rows, self.columns = rows, columns
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(command[0], command, {**env, "TERM": "vt100"})
        self.received = self.transcript = ""
        self.status: int | None = None
        self.clear()
        self.resize(rows, columns)

    def clear(self) -> None:
        self.lines = [[" "] * 300 for _ in range(200)]
        self.at = [0, 0]
        self.region = (0, self.rows - 1)  # what scrolls

    def resize(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.region = (0, rows - 1)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def screen(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.lines[: self.rows])

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def read(self) -> bool:
        """Takes in what came; false at the end."""
        ready, _, _ = select.select([self.fd], [], [], raw.PATIENCE)
        assert ready, f"nothing comes; the screen:\n{self.screen}"
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.received += data.decode("ascii", "replace")
        self.transcript += data.decode("ascii", "replace")
        # A sequence that is cut waits for its rest.
        whole = re.sub(r"\x1b(\[[?0-9;]*|[()])?$", "", self.received)
        rest, self.received = self.received[len(whole) :], ""
        for match in SEQUENCE.finditer(whole):
            self.apply(match)
        self.received = rest
        return bool(data)

    def apply(self, match: re.Match[str]) -> None:
        arguments, command, other, control, text = match.groups()
        row, column = self.at
        first, last = self.region
        if text:
            for c in text:
                self.lines[self.at[0]][self.at[1]] = c
                self.at[1] = min(self.at[1] + 1, self.columns - 1)
        elif control == "\r":
            self.at[1] = 0
        elif control == "\n" and row == last:
            self.lines.insert(last, self.lines.pop(first))
            self.lines[last][:] = [" "] * 300
        elif control == "\n":
            self.at[0] = min(row + 1, self.rows - 1)
        elif other == "M" and row == first:
            self.lines.insert(first, self.lines.pop(last))
            self.lines[first][:] = [" "] * 300
        elif other == "M":
            self.at[0] = max(row - 1, 0)
        elif control == "\x08":
            self.at[1] = max(column - 1, 0)
        elif command:
            self.apply_command(command, [int(n) if n.isdigit() else 0 for n in arguments.lstrip("?").split(";")])

    def apply_command(self, command: str, n: list[int]) -> None:
        row, column = self.at
        if command == "H":
            self.at = [max(n[0], 1) - 1, max((n + [1])[1], 1) - 1]
        elif command == "J":
            self.lines[row][column:] = [" "] * (300 - column)
            for line in self.lines[row + 1 :]:
                line[:] = [" "] * 300
        elif command == "K" and n[0] == 0:
            self.lines[row][column:] = [" "] * (300 - column)
        elif command == "K" and n[0] == 1:
            self.lines[row][: column + 1] = [" "] * (column + 1)
        elif command == "r":
            self.region = (max(n[0], 1) - 1, (n[1] if len(n) > 1 and n[1] else self.rows) - 1)
            self.at = [0, 0]
        elif command in "ABCD":
            step = max(n[0], 1)
            self.at[command in "CD"] += step if command in "BC" else -step

    def until(self, condition: Callable[[str], bool], what: str) -> str:
        """Reads until the screen is so."""
        end = time.monotonic() + raw.PATIENCE
        while not condition(self.screen):
            assert time.monotonic() < end, f"not {what}; the screen:\n{self.screen}"
            assert self.read(), f"not {what}, but the end; the screen:\n{self.screen}"
        return self.screen

    def wait(self) -> int:
        """Its exit status."""
        while self.read():
            pass
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
