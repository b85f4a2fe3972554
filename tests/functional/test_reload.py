"""SIGHUP: the settings are read again, and what may change while the daemon runs does."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest
from arrays import LongRun, Vectors, run_params
from support import backends, memfd, proc, raw
from support.daemon import Daemon

CONFIG = backends.config(backends.HOST)


def reload(daemon: Daemon, text: str) -> list[str]:
    """The notifications, from RELOADING to READY."""
    (daemon.folder / "kopsd.conf").write_text(text, encoding="utf-8")
    os.kill(daemon.pid, signal.SIGHUP)
    return [daemon.heard("RELOADING=1"), daemon.heard("READY=1")]


def test_a_limit_changes() -> None:
    with Daemon(config=CONFIG, manager=True) as daemon, daemon.connect() as old:
        assert old.call("hello")["limits"]["inflight"] == 256
        reload(daemon, CONFIG + "[limits]\ninflight = 3\n[quota]\nbuffers = 2\n")
        with daemon.connect() as new:
            assert new.call("hello")["limits"]["inflight"] == 3
        # … and for who was there before.
        for _ in range(2):
            old.register(memfd.Shared(4096))
        with pytest.raises(raw.RpcError, match="quota_exceeded"):
            old.register(memfd.Shared(4096))


def test_who_was_held_back_goes_on() -> None:
    """A connection that had as much in flight as was allowed may have more."""
    with Daemon(config=CONFIG + "[limits]\ninflight = 1\n", manager=True) as daemon, daemon.connect() as connection:
        vectors = Vectors(connection, 2, 1000)
        vectors[0][:] = 3
        work = LongRun(connection)
        waits = connection.request("run", run_params("square", [vectors.tensor(0)], vectors.tensor(1), stream=1))
        assert not connection.readable(0.1)
        reload(daemon, CONFIG + "[limits]\ninflight = 3\n")
        assert connection.reply(waits).error is None
        connection.call("cancel", {"msgid": work.msgid})


@pytest.mark.parametrize(
    "text",
    ["[limits]\ninflight = many\n", "[limits]\ncolour = red\n", "nonsense\n", "[access]\nallow = no_such_user_here\n", None],
    ids=["value", "key", "syntax", "user", "gone"],
)
def test_a_bad_file_changes_nothing(text: str | None) -> None:
    """The daemon goes on with what it had, and says why: in its log and in its status."""
    with Daemon(config=CONFIG + "[limits]\ninflight = 5\n", manager=True) as daemon, daemon.connect() as connection:
        if text is None:
            (daemon.folder / "kopsd.conf").unlink()
        else:
            (daemon.folder / "kopsd.conf").write_text(CONFIG + text, encoding="utf-8")
        os.kill(daemon.pid, signal.SIGHUP)
        # As Type=notify-reload wants it: when it began, by a clock that the manager shares, and when it is done.
        assert re.search(r"^MONOTONIC_USEC=\d+$", daemon.heard("RELOADING=1"), re.MULTILINE)
        assert "STATUS=the settings are the old ones: " in daemon.heard("READY=1")
        assert "level=error event=reload why=" in daemon.log()
        assert connection.alive()
        with daemon.connect() as new:
            assert new.call("hello")["limits"]["inflight"] == 5
        reload(daemon, CONFIG + "[limits]\ninflight = 6\n[server]\nlog_level = debug\n")  # and takes the next one
        with daemon.connect() as new:
            assert new.call("hello")["limits"]["inflight"] == 6
        proc.eventually(lambda: "level=debug" in daemon.log(), "it says more")


def test_what_needs_a_restart_is_said() -> None:
    """… and does not happen; what does not need it happens all the same."""
    with Daemon(config=CONFIG, manager=True) as daemon:
        reload(daemon, CONFIG + "[host]\nthreads = 1\n[limits]\ninflight = 9\n")
        assert 'level=warning event=reload_ignored setting=host.threads why="needs a restart"' in daemon.log()
        assert "event=reload_setting setting=limits.inflight" in daemon.log()
        with daemon.connect() as connection:
            assert connection.call("hello")["limits"]["inflight"] == 9
        # Only what differs is said, for as long as it does.
        assert daemon.log().count("event=reload_ignored") == 1
        reload(daemon, CONFIG + "[host]\nthreads = 1\n")
        assert daemon.log().count("event=reload_ignored") == 2
        reload(daemon, CONFIG)
        assert daemon.log().count("event=reload_ignored") == 2


def test_what_is_given_otherwise_stays() -> None:
    """The environment and the flags come after the file, the second time too."""
    size = 1 << 19
    env = {"KOPSD_LIMITS_INFLIGHT": "11"}
    with Daemon("--set", f"limits.message_bytes={size}", config=CONFIG, env=env, manager=True) as daemon:
        reload(daemon, CONFIG + "[limits]\ninflight = 3\nmessage_bytes = 8192\n")
        with daemon.connect() as connection:
            limits = connection.call("hello")["limits"]
        assert (limits["inflight"], limits["message_bytes"]) == (11, size)


def test_while_it_starts() -> None:
    """The settings may have been read already, so they are read again as soon as there is a server."""
    told_at_once = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"  # waits, and goes with the process to the next program
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    with Daemon(config=CONFIG, manager=True, start=False) as daemon:
        daemon.command = [sys.executable, "-c", told_at_once, *daemon.command]
        daemon.start()
        daemon.heard("RELOADING=1")
        daemon.heard("READY=1")
        assert daemon.log().count("event=reload done=true") == 1
