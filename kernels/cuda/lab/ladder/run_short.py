"""Checks and times the kernels of a cubin of ../../ops/gemm_short.cu (few rows; small matrices) beside torch.mm and cuBLASLt's best.

    python3 run_short.py short.cubin [--out results.json]

Times are of kernels in a CUDA graph, one after the other: `hot` on the same operands again and again, which then are in the L2 cache
where they fit, `cold` on operands that were not used for more than the cache's size."""

import argparse
import json
import re
import struct

import torch
from cuda_calls import Module, Product, find_blas, launch

TYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ROUNDING = {"f32": 2.0**-24, "tf32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
OF_TERMS = {"tf32": 2.0**-10}  # of the sum of the products' sizes: rounding of operands, and of sums
WORKSPACE = 64 << 20
CASES = ((16, 64, 128), (1, 64, 4096), (5, 1000, 1000), (16, 333, 777), (13, 8, 2048), (1, 1, 1), (7, 95, 63))


def say(*words):
    print(*words, flush=True)


def matrix(t, row, column):
    return struct.pack("<3Q8Q", t.data_ptr(), row, column, t.stride(0), *[0] * 7)


def in_pieces(t, unit, other):
    size = t.element_size()
    return t.stride(unit) == 1 and t.data_ptr() % 16 == 0 and t.stride(other) * size % 16 == 0 and t.stride(0) * size % 16 == 0


def prepare(kernel, split, tile, a, b, out, alpha=1.0, beta=0.0):
    """a: [batch, m, k], b: [batch, k, n], out: [batch, m, n]: any strides. Returns the launch of a kernel by name."""
    batch, m, n = out.shape
    k = a.shape[2]
    tiles_m, tiles_n = -(-m // tile[0]), -(-n // tile[1])
    a_along = in_pieces(a, 2, 1) if "skinny" in kernel else a.stride(2) == 1
    b_along = b.stride(1) == 1
    no_stamps, no_bias = bytes(24), bytes(88)
    params = no_stamps + b"".join(matrix(t, t.stride(1), t.stride(2)) for t in (a, b, out)) + no_bias
    params += struct.pack("<3Q2dQ8Q6I2Q", m, n, k, alpha, beta, batch, batch, *[0] * 7, 1, 0, 0, a_along, b_along, 0, tiles_m, tiles_n)
    return min(tiles_m * tiles_n * batch, 1 << 20) * split, params


class Kernels:
    def __init__(self, image):
        self.module, self.functions = Module(image), {}
        self.names = [n.decode() for n in dict.fromkeys(re.findall(rb"\.text\.(kops_gemm_\w+)", image))]

    def run(self, name, prepared):
        if name not in self.functions:
            self.functions[name] = self.module.kernel(name)
        blocks, params = prepared
        threads = 512 if "skinny" in name else 128 if "tf32" in name else 256
        launch(self.functions[name], (blocks, 1, 1), (threads, 1, 1), 0, params, torch.cuda.current_stream().cuda_stream)


def random(dtype, batch, rows, columns, turned, pad=0):
    """[batch, rows, columns], its last dimension (its rows, where turned) contiguous and padded to whole pieces."""
    inner, outer = (rows, columns) if turned else (columns, rows)
    lead = -(-inner // 8) * 8 + pad
    whole = torch.full((batch, outer, lead), float("nan"), device="cuda", dtype=dtype)
    whole[:, :, :inner] = torch.randn(batch, outer, inner, device="cuda")
    seen = whole[:, :, :inner]
    return seen.transpose(1, 2) if turned else seen


def check(kernels, name, split, tile, dtype, m, n, k, a_turned, b_turned, batch=1, alpha=1.0, beta=0.0, pad=0, few=1):
    """`few`: as many tiles a block."""
    a, b = random(TYPES[dtype], batch, m, k, a_turned, pad), random(TYPES[dtype], batch, k, n, b_turned)
    if pad:
        b = random(TYPES[dtype], batch, k, n, b_turned, pad)
    whole = torch.full((batch, m + 1, n + 3), float("nan"), device="cuda", dtype=TYPES[dtype])
    out = whole[:, :m, :n]
    if beta:
        out.copy_(torch.randn(batch, m, n, device="cuda"))
    before = out.double() if beta else 0.0
    blocks, params = prepare(name, split, tile, a, b, out, alpha, beta)
    kernels.run(name, (max(1, blocks // split // few) * split, params))
    torch.cuda.synchronize()
    want = alpha * (a.double() @ b.double()) + beta * before
    terms = abs(alpha) * (a.double().abs() @ b.double().abs()) + abs(beta) * (before.abs() if beta else 0)
    room = terms * OF_TERMS.get(dtype, 2.0**-21) + want.abs() * ROUNDING[dtype] * 1.01 + 1e-7
    worst = ((out.double() - want).abs() / room).nan_to_num(1e9).max().item()
    around = whole.clone()
    around[:, :m, :n] = float("nan")
    good = worst <= 1 and bool(around.isnan().all())
    if not good:
        say("WRONG", name, f"{m}x{n}x{k} turned {a_turned:d}{b_turned:d} batch {batch} beta {beta}: {worst:.3g} of the tolerance,",
            "nothing outside" if around.isnan().all() else "wrote outside")
    return good


def graph_time(runs, rounds=5):
    """Seconds a launch: `runs` are recorded one after the other."""
    for run in runs[:2]:
        run()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        for run in runs:
            run()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    graph.replay()
    for _ in range(rounds):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / len(runs))
    return min(times)


def lt_best(blas, workspace, dtype, m, n, k, b_turned, sets):
    product = Product(blas, dtype, m, n, k, False, b_turned, k, k if b_turned else n, n, workspace.data_ptr(), WORKSPACE)
    best = {}
    for algorithm in product.algorithms:
        def run(s, algorithm=algorithm):
            product.run(algorithm, *(t.data_ptr() for t in s), torch.cuda.current_stream().cuda_stream)
        try:
            for how, used in (("hot", [sets[0]] * 20), ("cold", (sets * 20)[:20])):
                t = graph_time([lambda s=s: run(s) for s in used], 3)
                best[how] = min(best.get(how, 1.0), t)
        except RuntimeError:
            pass
    return best


def compare(kernels, blas, workspace, dtype, m, n, k, b_turned, candidates):
    """candidates: name → (kernel, split, tile)."""
    size = torch.empty(0, dtype=TYPES[dtype]).element_size()
    count = min(20, max(2, (160 << 20) // (k * n * size) + 1)) if k * n * size > 1 << 20 else 20
    sets = []
    for _ in range(count):
        a, b = random(TYPES[dtype], 1, m, k, False), random(TYPES[dtype], 1, k, n, b_turned)
        sets.append((a, b, torch.empty(1, m, n, device="cuda", dtype=TYPES[dtype])))
    row = {"dtype": dtype, "m": m, "n": n, "k": k, "b_turned": b_turned, "us": {}}
    ways = {"torch": lambda s: torch.mm(s[0][0], s[1][0], out=s[2][0])}
    for label, (name, split, tile) in candidates.items():
        ready = {id(s): prepare(name, split, tile, *s) for s in sets}
        ways[label] = lambda s, name=name, ready=ready: kernels.run(name, ready[id(s)])
    for label, way in ways.items():
        row["us"][label] = [graph_time([lambda s=s, way=way: way(s) for s in used]) * 1e6 for used in ([sets[0]] * 20, (sets * 20)[:20])]
    if dtype != "tf32":
        lt = lt_best(blas, workspace, dtype, m, n, k, b_turned, sets)
        row["us"]["lt best"] = [lt["hot"] * 1e6, lt["cold"] * 1e6]
    times = " ".join(f"{w}={h:.1f}/{c:.1f}" for w, (h, c) in row["us"].items())
    say(dtype, f"{m}x{n}x{k}", "b along k" if b_turned else "b across", times)
    return row


def tile_of(name, dtype):
    if "small" in name:
        return 32, 32
    return 16, {("f32", True): 16, ("f32", False): 32}.get((dtype, "along" in name), 32 if "along" in name else 64)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cubin")
    parser.add_argument("--out", default="")
    parser.add_argument("--only", default="", help="kernels whose name matches")
    args = parser.parse_args()
    torch.mm(torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda"))
    with open(args.cubin, "rb") as f:
        kernels = Kernels(f.read())
    kernels.names = [name for name in kernels.names if re.search(args.only, name)]
    blas, workspace = find_blas(), torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)
    wrong, rows, checks = 0, [], 0
    for name in kernels.names:
        dtype, split = re.search(r"gemm_(\w+?)_", name)[1], int(re.search(r"_(\d)(_any)?$", name)[1])
        b_turned = "along" in name
        for i, (m, n, k) in enumerate(CASES):
            more = [{}, {"batch": 3, "alpha": 2.0, "beta": 0.5, "few": 3}, {"beta": 1.0, "few": 2}][i % 3]
            if "small" in name:
                for a_turned in (False, True):
                    for turned in (False, True):
                        wide = not name.endswith("_any")
                        m4 = m if wide else m * 9
                        checks += 1
                        wrong += not check(kernels, name, split, tile_of(name, dtype), dtype, m4, n, k, a_turned, turned,
                                           pad=0 if wide else 1, **more)
            else:
                for a_turned in (False, True):
                    checks += 1
                    wrong += not check(kernels, name, split, tile_of(name, dtype), dtype, m, n, k, a_turned, b_turned, **more)
    say(f"{wrong} of {checks} checks wrong")
    timed = [dtype for dtype in TYPES if any(f"_{dtype}_" in name for name in kernels.names)]
    for dtype in (d for d in timed if d != "tf32"):
        for m, n, k in ((16, 4096, 4096), (1, 4096, 4096), (8, 11008, 4096), (16, 1024, 8192)) if dtype != "f16" else ((16, 4096, 4096),):
            for turned in (True, False):
                base = f"kops_gemm_{dtype}_skinny_{'along' if turned else 'across'}"
                rows.append(compare(kernels, blas, workspace, dtype, m, n, k, turned,
                                    {f"/{s}": (f"{base}_{s}", s, tile_of(base, dtype)) for s in (1, 2, 4, 8)}))
    for m, n, k in ((64, 64, 64), (128, 128, 128), (256, 256, 256), (96, 96, 1024), (192, 256, 512)):
        for dtype in (d for d in timed if d in ("f32", "tf32")):
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            for turned in (True, False):
                rows.append(compare(kernels, blas, workspace, dtype, m, n, k, turned,
                                    {f"/{s}": (f"kops_gemm_{dtype}_small_{s}", s, (32, 32)) for s in (1, 2, 4, 8)}))
    if args.out:
        with open(args.out, "w") as f:
            json.dump({"wrong": wrong, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
