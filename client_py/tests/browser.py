"""Pages in Chromium without a window."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WHY_NOT = "no Chromium here (apt-get install chromium)"
# Its own requests, to its maker, are off. As root it has no sandbox; the pages are the tests' own.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--disable-extensions", "--use-mock-keychain", "--password-store=basic", "--virtual-time-budget=20000", "--window-size=1400,900",
)  # fmt: skip
OUTER = """<body><script>
(async () => {
    const [page, widths, expressions] = PARAMETERS, seen = [];
    for (const width of widths) {
        const frame = document.createElement("iframe");
        frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
        const loaded = new Promise(done => frame.onload = done);
        frame.srcdoc = page;
        document.body.append(frame);
        await loaded;
        seen.push(Object.fromEntries(Object.entries(expressions).map(([name, text]) => [name, frame.contentWindow.eval(text)])));
    }
    document.body.innerHTML = "<pre></pre>";
    document.querySelector("pre").textContent = JSON.stringify(seen);
})();
</script></body>"""


def look(page: str, expressions: dict[str, str], *widths: int, dark: bool = False) -> list[dict[str, Any]]:
    """What the expressions of JavaScript are where the page is shown as wide as that. No line of the console is printed by it."""
    assert PROGRAM, WHY_NOT
    with tempfile.TemporaryDirectory(prefix="kops-chromium-", ignore_cleanup_errors=True) as home:
        outer = Path(home, "outer.html")
        parameters = json.dumps([page, widths, expressions]).replace("</", "<\\/")
        outer.write_text(OUTER.replace("PARAMETERS", parameters), encoding="utf-8")
        how = [f"--user-data-dir={home}/data", f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", outer.as_uri()]
        done = subprocess.run([PROGRAM, *FLAGS, *how], capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": home})
    found = re.search(r"<pre>(.*)</pre>", done.stdout, re.DOTALL)
    assert found and "CONSOLE" not in done.stderr, (done.stdout[-500:], done.stderr)
    seen: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return seen
