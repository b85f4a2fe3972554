"""Chromium without a window, over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
WHY_NOT = "no Chromium here (apt-get install chromium)"
# Its own requests, to its maker, are off. As root it has no sandbox; the pages are the tests' own.
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--disable-extensions", "--use-mock-keychain", "--password-store=basic",
)  # fmt: skip
PATIENCE = 120.0


class Browser:
    """One process with one page. `events` has what the page did: requests, the console's lines, exceptions."""

    def __init__(self) -> None:
        assert PROGRAM, WHY_NOT
        self._home = tempfile.TemporaryDirectory(prefix="kops-chromium-", ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # The protocol's descriptors are 3 and 4, which a pipe's may be, too.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_read, to_write)]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", PROGRAM, *FLAGS, f"--user-data-dir={self._home.name}"],
            pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._home.name}, start_new_session=True,
        )  # fmt: skip
        for fd in (to_read, to_write, *theirs):
            os.close(fd)
        self._buffer, self._next, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        try:
            self._session = ""
            self.call("Browser.close")
            self._process.wait(PATIENCE)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            os.close(self._to)
            os.close(self._from)
            self._home.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        self._next += 1
        number = self._next
        session = {"sessionId": self._session} if self._session else {}
        self._send({"id": number, "method": method, "params": params, **session})
        while True:
            message = self._message()
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def _send(self, message: dict[str, Any]) -> None:
        os.write(self._to, json.dumps(message).encode() + b"\0")

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(until - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            read = os.read(self._from, 1 << 20)
            assert read, f"Chromium has ended, with status {self._process.wait()}"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Page.javascriptDialogOpening":  # the page waits, and with it every answer
            self._send({"id": -1, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}, "sessionId": message["sessionId"]})
        return message

    def show(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Opens a page; returns when it has been loaded and drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        opened = self.call("Page.navigate", url=address)
        assert "errorText" not in opened, opened
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, as JSON has it; of a promise what it comes to."""
        made = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def screenshot(self, path: Path, whole: bool = True) -> None:
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))

    def requests(self) -> list[str]:
        """The addresses that were asked for since `show`."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Errors, lines of the console and dialogs since `show`."""
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed")
        methods += ("Page.javascriptDialogOpening",)
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in methods]
