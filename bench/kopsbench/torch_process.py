"""One of many processes with torch that make small blocking adds on CUDA tensors of their own.

    python -m kopsbench.torch_process SOCKET

Says `"ready"`; reads a line of JSON, two moments of CLOCK_MONOTONIC in ns, and works from the first to the second. Writes a line
of JSON: calls, and the median and 99th percentile of their times in µs. A further line is a further round; ends at end of file.
"""

from __future__ import annotations

import json
import sys
from time import monotonic_ns, sleep

ELEMENTS = 1024


def main() -> None:
    import kops
    import torch

    with kops.connect(sys.argv[1], timeout=60) as client:
        a, b, out = (torch.full((ELEMENTS,), float(i), device="cuda") for i in range(3))
        for _ in range(100):
            client.add(a, b, out=out)
        print('"ready"', flush=True)
        for line in sys.stdin:
            begin, end = json.loads(line)
            sleep(max(0, begin - monotonic_ns()) * 1e-9)
            times, before = [], monotonic_ns()
            while before < end:
                client.add(a, b, out=out)
                now = monotonic_ns()
                times.append(now - before)
                before = now
            times.sort()
            if float(out[0]) != 1.0:
                raise RuntimeError("the result is wrong")
            p50, p99 = (times[int(len(times) * part)] * 1e-3 for part in (0.5, 0.99))
            print(json.dumps({"calls": len(times), "p50_us": p50, "p99_us": p99}), flush=True)


main()
