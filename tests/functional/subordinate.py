"""A user, and the subordinates that newuidmap lets it be, connect to a daemon. Needs nothing but Python: it runs where the
project's files may be out of reach.

    python3 - SOCKET REQUEST UID COUNT FIRST   (as the user)

REQUEST is sent by each, in hexadecimal. Prints what each got, a line each, the user itself first; all stay connected until the
input ends.
"""

import ctypes
import os
import socket
import subprocess
import sys


def ask(path: str, request: bytes) -> None:
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    try:
        s.sendall(request)
    except OSError:
        pass  # refused before it was sent; what was said is there to be read
    os.write(1, f"{s.recv(65536).hex()}\n".encode())  # at once: print() may write the line's end by itself, after another's line
    sys.stdin.read()


def become(inner: int, mapped: int, told: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), "unshare")
    os.write(told, b"+")
    os.close(told)
    os.read(mapped, 1)
    os.setuid(inner)


def main() -> None:
    path, request = sys.argv[1], bytes.fromhex(sys.argv[2])
    uid, count, first = map(int, sys.argv[3:6])
    if os.fork() == 0:
        ask(path, request)
        os._exit(0)
    for inner in range(1, count + 1):
        ready, told = os.pipe()
        mapped, map_it = os.pipe()
        pid = os.fork()
        if pid == 0:
            become(inner, mapped, told)
            ask(path, request)
            os._exit(0)
        os.read(ready, 1)
        subprocess.run(
            ["newuidmap", str(pid), "0", str(uid), "1", "1", str(first), str(count)],
            check=True,
        )
        os.write(map_it, b"+")


main()
