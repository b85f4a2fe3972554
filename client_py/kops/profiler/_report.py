"""A report of what ran: the roofline, the table, the slowest shapes, a timeline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import BadArgument, Client, Device
from ._page import page
from ._peaks import Peaks, measure
from ._plot import figure_class, picture
from ._profile import profile as Profile
from ._rows import rows_of


def report(
    client: Client, path: str | os.PathLike[str], *, profile: Profile | None = None, peaks: Mapping[str, Peaks] | None = None,
    op: str | None = None, device: Device | str | int | None = None,
) -> dict[str, Peaks]:  # fmt: skip
    """Writes what the daemon's statistics have, by `k.stats()`: each op and kernel with its shapes under the roofs of its device.
    `path` ends in `.html` for a page, or in `.png` for a picture of the rooflines alone, which needs matplotlib. Returns the
    devices' peaks by UUID, to be given to the next report as `peaks`: they are measured where they are missing, which takes some
    seconds of the device and adds to its statistics. `profile`: a `kops.profiler.profile` whose timeline is added to a page. `op`,
    `device`: what ran of this op, or there, alone."""
    kind = Path(path).suffix.lower()
    if kind not in (".html", ".htm", ".png"):
        raise BadArgument(f"a report is a page, .html, or a picture, .png; not {os.fspath(path)!r}")
    if kind == ".png":
        figure_class()  # before seconds are spent
    stats = [row for row in client.stats(op, device=device)["ops"] if row["count"]]
    if not stats:
        what = "nothing" if op is None and device is None else "nothing of this op and device"
        raise BadArgument(f"there is nothing to report: {what} has run since the daemon's start, or the last reset of its statistics")
    known = dict(peaks or {})
    devices = {device.uuid: device for device in client.devices}
    for uuid in {row["device"] for row in stats} & devices.keys() - known.keys():
        known[uuid] = measure(client, devices[uuid])
    rows = rows_of(stats, known)
    server: Any = client.info.server
    if kind == ".png":
        picture(path, rows, known, server)
    else:
        Path(path).write_text(page(rows, known, server, profile.events() if profile is not None else ()), encoding="utf-8")
    return known
