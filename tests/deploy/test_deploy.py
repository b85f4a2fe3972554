"""What deploy/ ships is what the daemon understands: the example settings are valid and complete."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from deployed import DEPLOY, ROOT, binary, kopsd, run

sys.path.insert(0, str(ROOT / "tools"))

from example_config import example  # noqa: E402


def test_example_settings_are_valid_as_they_are_and_when_all_are_set(tmp_path: Path) -> None:
    text = (DEPLOY / "kopsd.conf").read_text(encoding="utf-8")
    (tmp_path / "all.conf").write_text(re.sub(r"^;(\w+ = )", r"\1", text, flags=re.MULTILINE), encoding="utf-8")
    for path in (DEPLOY / "kopsd.conf", tmp_path / "all.conf"):
        done = kopsd("--check-config", "--config", str(path), "--socket", "/tmp/unused.sock")
        assert done.returncode == 0, done.stderr


def test_example_settings_are_the_daemon_s() -> None:
    """Each with its default value and what the daemon says of it: tools/example_config.py writes them anew."""
    printed = run(str(binary()), "--config", "/dev/null", "--print-config", env={})
    assert printed.returncode == 0, printed.stderr
    text = (DEPLOY / "kopsd.conf").read_text(encoding="utf-8")
    assert example(text, printed.stdout) == text
