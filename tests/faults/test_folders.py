"""A folder that cannot be opened, or not read to its end: half of it is never taken for all of it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import ALWAYS, FaultyDaemon
from gpu_machine import only_with_nvrtc
from scenario import fresh_client
from support import backends, proc, raw
from support.kernels import ADD, ARCH

FIRST_READ = 2  # of the calls for a folder: the first opens it
FAILURES = [(1, errno.EMFILE), (1, errno.EIO), (FIRST_READ, errno.EIO), (FIRST_READ + 2, errno.EIO), (FIRST_READ + 3, errno.ENOMEM)]


# ---- the folders that have sockets ----


@pytest.fixture
def sockets() -> Iterator[FaultyDaemon]:
    """Of the folders a, b and c below `folders`."""
    daemon = FaultyDaemon(start=False)
    folders = daemon.folder / "folders"
    for name in "abc":
        (folders / name).mkdir(parents=True)
    config = backends.config(backends.HOST) + f"[socket *]\npath = {folders}/*/kopsd.sock\n"
    (daemon.folder / "kopsd.conf").write_text(config, encoding="utf-8")
    daemon.command += ["--config", str(daemon.folder / "kopsd.conf")]
    with daemon:
        daemon.start()
        yield daemon


def at(daemon: FaultyDaemon, name: str) -> raw.Connection:
    return raw.Connection(str(daemon.folder / "folders" / name / "kopsd.sock"))


def may_connect(daemon: FaultyDaemon, name: str) -> bool:
    try:
        with at(daemon, name) as connection:
            return connection.call("hello")["identity"] == name
    except (FileNotFoundError, ConnectionRefusedError):
        return False


@pytest.mark.parametrize("by_reload", [False, True])
@pytest.mark.parametrize(("nth", "how"), FAILURES)
def test_nobody_loses_a_socket(sockets: FaultyDaemon, nth: int, how: int, by_reload: bool) -> None:
    daemon = sockets
    with at(daemon, "a") as a, at(daemon, "b") as b, at(daemon, "c") as c:
        assert all(one.call("ping", {"n": 1}) == {"n": 1} for one in (a, b, c))
        before = daemon.holdings()
        daemon.faults.arm("folder", nth, how, ALWAYS)
        if by_reload:
            os.kill(daemon.pid, signal.SIGHUP)
        else:
            (daemon.folder / "folders" / "d").mkdir()
        proc.eventually(lambda: "event=socket why=" in daemon.log(), daemon.log)
        daemon.faults.disarm()
        assert f"folder {daemon.folder}/folders/: {os.strerror(how)}" in daemon.log()
        assert "event=socket_gone" not in daemon.log()
        assert [one.call("hello")["identity"] for one in (a, b, c)] == ["a", "b", "c"]
        assert all(may_connect(daemon, name) for name in "abc")
        daemon.wait_holdings(before)
        (daemon.folder / "folders" / "e").mkdir()  # and the next look finds all
        proc.eventually(lambda: may_connect(daemon, "e"), daemon.log)
        assert by_reload or may_connect(daemon, "d")


# ---- the compiler's, and its cache ----


def compiled(connection: raw.Connection, name: str) -> str:
    reply = connection.call("compile", {"source": f"{ADD}// {name}\n", "entries": ["add2_kernel"], "arch": ARCH})
    return str(reply["cached"])


@only_with_nvrtc
@pytest.mark.parametrize(("nth", "how"), FAILURES)
def test_a_cache_that_cannot_be_read_is_not_listed_in_part(nth: int, how: int) -> None:
    # What stands in front of the system calls is not what the sandbox expects of a build with a sanitizer.
    with FaultyDaemon("--set", "server.sandbox=off") as daemon, daemon.connect() as connection:
        names = [f"{i}" for i in range(4)]
        assert [compiled(connection, name) for name in names] == ["no"] * 4

        def listed() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = connection.call("cache", {"action": "list"})["entries"]
            return found

        proc.eventually(lambda: all(entry["on_disk"] for entry in listed()), "all is on disk")
        before = daemon.holdings()
        daemon.faults.arm("folder", nth, how, ALWAYS)
        for action in ("list", "clear"):
            error = connection.error("cache", {"action": action})
            if how == errno.EMFILE:  # the caller may try again, as with other requests that find no descriptor
                assert error.code == "quota_exceeded" and "the list of the cache" in error.message
            else:
                assert error.code == "internal" and "cache directory" in error.message and os.strerror(how) in error.message
        daemon.faults.disarm()
        assert len(listed()) == 4 and all(entry["on_disk"] for entry in listed())
        daemon.wait_holdings(before)
        fresh_client(daemon)


@only_with_nvrtc
def test_a_compiler_whose_folders_cannot_be_read_is_not_used(tmp_path: Path) -> None:
    """Their names are part of the keys of compiled code."""
    daemon = FaultyDaemon("--set", "server.sandbox=off", start=False)
    try:
        assert daemon.try_start() is None
        calls = daemon.faults.disarm()["folder"]
        daemon.stop()
        assert calls > FIRST_READ
        refused = 0
        for nth in (1, FIRST_READ, calls - 1, calls):
            assert daemon.try_start("folder", nth, errno.EIO) is None
            daemon.faults.disarm()
            said = "cannot be read: Input/output error" in daemon.log()
            with daemon.connect() as connection:
                params = {"source": ADD, "entries": ["add2_kernel"], "arch": ARCH}
                error = connection.reply(connection.request("compile", params)).error
                assert (error is not None) == said and (not said or "cannot be read" in str(error))
            refused += said
            daemon.stop()
        assert refused >= 2
    finally:
        daemon.cleanup()


# ---- the daemon's own descriptors ----


@pytest.mark.parametrize(("nth", "how"), FAILURES)
def test_descriptors_that_cannot_be_counted_are_not_told(nth: int, how: int) -> None:
    with FaultyDaemon() as daemon, daemon.connect() as connection:
        assert "\nkopsd_open_fds " in connection.call("metrics")["text"]
        before = daemon.holdings()
        daemon.faults.arm("folder", nth, how, ALWAYS)
        text = connection.call("metrics")["text"]
        fired = daemon.faults.fired
        daemon.faults.disarm()
        assert fired and "\nkopsd_open_fds " not in text
        daemon.wait_holdings(before)
        assert "\nkopsd_open_fds " in connection.call("metrics")["text"]


# ---- the cache that root gives to the user it becomes ----


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives it away")
@pytest.mark.parametrize(("nth", "how"), FAILURES[1:])
def test_a_cache_is_given_whole_or_not_at_all(nth: int, how: int) -> None:
    daemon = FaultyDaemon("--set", "server.user=nobody", "--set", "kernels.nvrtc=none", start=False)
    cache = daemon.folder / "cache"
    daemon.command += ["--set", f"cache.directory={cache}"]
    try:
        daemon.folder.chmod(0o755)
        cache.mkdir(mode=0o700)
        for name in ("0" * 64, "1" * 64, "secret"):
            (cache / name).touch(mode=0o600)
        assert daemon.try_start("folder", nth, how) is None
        assert daemon.faults.fired == 1
        daemon.faults.disarm()
        said = f"the cache's directory is not given to user 65534: {os.strerror(how)}"
        assert said in daemon.log(), daemon.log()
        assert {path.stat().st_uid for path in (cache, *cache.iterdir())} == {0}
        daemon.stop()
        assert daemon.try_start() is None
        assert {path.stat().st_uid for path in (cache, *cache.iterdir())} == {65534}
        daemon.stop()
    finally:
        daemon.cleanup()
