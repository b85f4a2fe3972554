"""`python3 -m kops.judge._worker IN OUT`: the process that interprets one solution. It is given inputs and never what is right, keeps the
kernels' module state between launches, and is ended by its parent."""

from __future__ import annotations

import sys
from typing import Any

from .. import interpret
from .._base.errors import KopsError
from ._pipe import receive, send

BYTES_MAX = 1 << 40  # from the judge, which is trusted


def _run(spec: dict[str, Any], launches: list[dict[str, Any]], arrays: dict[str, Any]) -> None:
    for launch in launches:
        args = [arrays[one[1]] if one[0] == "area" else one[1] for one in launch["arguments"]]
        try:
            interpret.run(
                spec["source"], launch["entry"], launch["params"], args, grid=tuple(launch["grid"]), block=tuple(launch["block"]),
                shared=launch["shared"], cluster=tuple(launch["cluster"]) if launch["cluster"] else None, options=spec["options"],
                exited_threads="allow", check=spec["check"], timeout=launch["timeout"], name="solution.cu",
            )  # fmt: skip
        except interpret.InterpretError as error:
            error.detail["kernel"] = launch["entry"]
            raise


def _described(error: KopsError) -> dict[str, Any]:
    names = ("kind", "block", "thread", "line", "log", "tensor", "index")
    return {"message": str(error)[:4000], "kernel": error.detail.get("kernel", ""), **{name: getattr(error, name, None) for name in names}}


def main() -> None:
    source, target = open(int(sys.argv[1]), "rb"), open(int(sys.argv[2]), "wb")
    spec, _ = receive(source, BYTES_MAX)
    while True:
        try:
            asked, arrays = receive(source, BYTES_MAX)
        except EOFError:
            return
        for name in asked["bools"]:
            arrays[name] = arrays[name].view(bool)
        try:
            _run(spec, asked["launches"], arrays)
        except KopsError as error:
            send(target, {"error": _described(error)}, {})
        else:
            send(target, {}, {name: arrays[name].view("u1") if name in asked["bools"] else arrays[name] for name in asked["wanted"]})


if __name__ == "__main__":
    main()
