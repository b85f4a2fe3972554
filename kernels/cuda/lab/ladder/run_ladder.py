"""Checks and times the steps of the ladder, bf16 at 4096 x 4096 x 4096, beside cuBLASLt's best.

    python3 run_ladder.py first.cubin hopper.cubin [--out results.json]"""

import argparse
import json

import torch
from cuda_calls import Module, find_blas, launch
from run_hopper import Kernel
from run_short import WORKSPACE, prepare, say
from run_sizes import best_of_lt, in_turn, stream

SIZE = 4096
FIRST = ("naive", "simt", "mma")
HOPPER = ("128x128_s2_c11_l0", "128x128_s6_c11_l0", "128x256_s4_c11_l0", "128x256_s4_c21_l0")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("first")
    parser.add_argument("hopper")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    torch.mm(torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda"))
    modules = []
    for path in (args.first, args.hopper):
        with open(path, "rb") as f:
            modules.append(Module(f.read()))
    a, b = (torch.randn(1, SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out, theirs = (torch.empty(1, SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    kernels = {name: Kernel(modules[1], f"kops_gemm_bf16_kx_{name}") for name in HOPPER}
    workspace = torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)
    runs = {"lt": best_of_lt(find_blas(), workspace, kernels[HOPPER[0]], SIZE, SIZE, SIZE, a, b, theirs, 10)}
    for name in FIRST:
        function = modules[0].kernel(f"kops_gemm_ladder_{name}")
        blocks, params = prepare(f"kops_gemm_ladder_{name}", 1, (128, 128), a, b, out)
        grid = (SIZE * SIZE // 256 if name == "naive" else blocks, 1, 1)
        runs[name] = lambda function=function, grid=grid, params=params: launch(function, grid, (256, 1, 1), 0, params, stream())
    for name, kernel in kernels.items():
        ready = kernel.prepare(a, b.transpose(1, 2), out)
        runs[name] = lambda kernel=kernel, ready=ready: kernel.launch(ready, stream())
    want = a[0].double() @ b[0].double()
    room = (a[0].double().abs() @ b[0].double().abs()) * 2.0**-20 + want.abs() * 2.0**-8 * 1.01
    good = {}
    for name, run in runs.items():
        made = theirs if name == "lt" else out
        made.fill_(float("nan"))
        run()
        good[name] = bool(((made[0].double() - want).abs() <= room).all())
    times = in_turn(runs, 3, 5)
    rows = {name: {"right": good[name], "tflops": 2e-12 * SIZE**3 / t, "of_lt": times["lt"] / t} for name, t in times.items()}
    for name, row in rows.items():
        say(f"{name:20} {'right' if row['right'] else 'WRONG'} {row['tflops']:7.1f} TFLOP/s {row['of_lt'] * 100:5.1f} % of cuBLASLt")
    if args.out:
        with open(args.out, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
