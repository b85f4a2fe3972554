"""Times some kernels of a cubin of hopper.cu over sizes, beside torch.mm and cuBLASLt's best, all in turn, in CUDA graphs.

    python3 run_sizes.py hopper.cubin [--out results.json]"""

import argparse
import json

import torch
from cuda_calls import Module, Product, find_blas
from run_hopper import Kernel
from run_short import WORKSPACE, say

NAMES = ("128x256_s4_c21_l0", "128x256_s4_c21_l1", "128x128_s6_c21_l0", "128x128_s6_c11_l0", "256x128_s4_c12_l0")
SHAPES = (*((s, s, s) for s in (512, 1024, 1536, 2048, 3072)), *((m, 4096, 4096) for m in (64, 128, 256, 512, 1024)),
          (4096, 4096, 512), (4096, 4096, 4096), (8192, 8192, 8192))


def graph_of(run, launches):
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        for _ in range(launches):
            run()
    return graph


def replay(graph, launches):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / launches


def stream():
    return torch.cuda.current_stream().cuda_stream


def in_turn(runs, launches, rounds):
    """Median seconds of each of `runs`."""
    graphs = {name: graph_of(run, launches) for name, run in runs.items()}
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name].append(replay(graph, launches))
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def best_of_lt(blas, workspace, kernel, m, n, k, a, b, out, launches):
    product = Product(blas, kernel.dtype, m, n, k, kernel.a_across, not kernel.b_across, m if kernel.a_across else k,
                      n if kernel.b_across else k, n, workspace.data_ptr(), WORKSPACE)
    timed = []
    for algorithm in product.algorithms:
        def run(algorithm=algorithm):
            product.run(algorithm, a.data_ptr(), b.data_ptr(), out.data_ptr(), stream())
        try:
            graph = graph_of(run, launches)
            timed.append((min(replay(graph, launches) for _ in range(2)), algorithm))
        except RuntimeError:
            pass
    best = min(timed, key=lambda t: t[0])[1]
    return lambda: product.run(best, a.data_ptr(), b.data_ptr(), out.data_ptr(), stream())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cubin")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    torch.mm(torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda"))
    with open(args.cubin, "rb") as f:
        module = Module(f.read())
    blas, workspace, rows = find_blas(), torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8), []
    for m, n, k in SHAPES:
        kernels = {name: Kernel(module, f"kops_gemm_bf16_kx_{name}") for name in NAMES}
        a, b = torch.randn(1, m, k, device="cuda", dtype=torch.bfloat16), torch.randn(1, k, n, device="cuda", dtype=torch.bfloat16)
        out, theirs = (torch.empty(1, m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        flop = 2.0 * m * n * k
        launches = 4 if flop > 5e11 else 20
        lt = best_of_lt(blas, workspace, kernels[NAMES[0]], m, n, k, a, b, theirs, launches)
        runs = {"torch": lambda a=a, b=b, theirs=theirs: torch.mm(a[0], b[0], out=theirs[0]), "lt": lt}
        for name, kernel in kernels.items():
            for group in ((2, 4, 8, 12) if flop > 1e11 and name in NAMES[:2] else (8,)):
                prepared = kernel.prepare(a, b.transpose(1, 2), out, group=group)
                runs[f"{name} g{group}"] = lambda kernel=kernel, prepared=prepared: kernel.launch(prepared, stream())
        times = in_turn(runs, launches, 9)
        peer = min(times["torch"], times["lt"])
        rows.append({"shape": (m, n, k), "us": {name: t * 1e6 for name, t in times.items()}})
        say(f"{m}x{n}x{k}", " ".join(f"{name}={t * 1e6:.1f}({peer / t:.2f})" for name, t in times.items()))
    if args.out:
        with open(args.out, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
