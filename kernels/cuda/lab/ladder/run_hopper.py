"""Checks and times the kernels of a cubin of hopper.cu on the machine's first GPU, beside torch.mm and cuBLASLt's best.

    python3 run_hopper.py hopper.cubin [--only TEXT] [--seconds S] [--out results.json]

A kernel that hangs or faults ends its process; the next process goes on with the next kernel."""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import time

SIZES = (4096, 8192)
GROUPS = (2, 4, 8, 16)


def say(*words):
    print(*words, flush=True)


def shared_bytes(m, n, stages):
    return stages * (m + n) * 128 + 2 * 2 * 64 * 128 + stages * 16 + 1024


class Kernel:
    """Named as in hopper.cu."""

    def __init__(self, module, name):
        found = re.fullmatch(r"kops_gemm_(bf16|f16)_([kx])([kx])_(\d+)x(\d+)_s(\d)_c(\d)(\d)\w*", name)
        self.name, self.dtype = name, found[1]
        self.a_across, self.b_across = found[2] == "x", found[3] == "x"
        self.m, self.n, self.stages, self.cm, self.cn = (int(found[i]) for i in range(4, 9))
        self.shared = shared_bytes(self.m, self.n, self.stages)
        self.function = module.kernel(name, self.shared)

    def operand(self, tensor, across, share, promotion):
        """A map of [batch, x, k] that lies as its strides say."""
        from cuda_calls import tensor_map
        batch, x, k = tensor.shape
        inner, outer, lead = (x, k, tensor.stride(2)) if across else (k, x, tensor.stride(1))
        assert tensor.stride(1 if across else 2) == 1
        return tensor_map(self.dtype, tensor.data_ptr(), (inner, outer, batch), (lead * 2, max(tensor.stride(0), 1) * 2),
                          (64, 64 if across else share, 1), promotion=promotion)

    def prepare(self, a, b, out, alpha=1.0, beta=0.0, group=8, promotion=3):
        """a: [batch, m, k], b: [batch, n, k] (views in any order), out: [batch, m, n]; returns grid and parameters."""
        from cuda_calls import tensor_map
        batch, m, n = out.shape
        k = a.shape[2]
        tiles_m, tiles_n = -(-m // (self.m * self.cm)), -(-n // (self.n * self.cn))
        maps = self.operand(a, self.a_across, self.m // self.cn, promotion)
        maps += self.operand(b, self.b_across, self.n // self.cm, promotion)
        maps += tensor_map(self.dtype, out.data_ptr(), (n // 8 * 8, m, batch), (out.stride(1) * 2, out.stride(0) * 2), (64, 64, 1))
        params = bytes(64) + maps
        params += struct.pack("<QQQIIIIffIIIIII", out.data_ptr(), out.stride(1), out.stride(0), m, n, k, batch, alpha, beta,
                              int(a.shape[0] > 1), int(b.shape[0] > 1), tiles_m, tiles_n, group, 0)
        params += bytes(-len(params) % 64)
        cluster = self.cm * self.cn
        blocks = min(132 // cluster * cluster, tiles_m * tiles_n * batch * cluster)
        return (blocks, 1, 1), params

    def launch(self, prepared, stream=0):
        from cuda_calls import launch
        launch(self.function, prepared[0], (384, 1, 1), self.shared, prepared[1], stream)


def operand(torch, dtype, batch, x, k, across):
    """Random, its rows padded to 16 bytes and more; as [batch, x, k]."""
    rows, columns = (k, x) if across else (x, k)
    lead = (columns + 7) // 8 * 8 + (8 if columns % 16 else 0)
    whole = torch.full((batch, rows, lead), float("nan"), device="cuda", dtype=dtype)
    whole[:, :, :columns] = torch.randn(batch, rows, columns, device="cuda")
    seen = whole[:, :, :columns]
    return seen.transpose(1, 2) if across else seen


def check(torch, kernel, m, n, k, batch=1, alpha=1.0, beta=0.0, a_batch=None, group=8):
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[kernel.dtype]
    a = operand(torch, dtype, a_batch or batch, m, k, kernel.a_across)
    b = operand(torch, dtype, batch, n, k, kernel.b_across)
    lead = (n + 7) // 8 * 8 + 8
    whole = torch.full((batch, m + 1, lead), float("nan"), device="cuda", dtype=dtype)
    out = whole[:, :m, :n]
    if beta:
        out.copy_(torch.randn(batch, m, n, device="cuda"))
    before = out.double() if beta else 0.0
    kernel.launch(kernel.prepare(a, b, out, alpha, beta, group))
    torch.cuda.synchronize()
    a64, b64 = a.double(), b.double().transpose(1, 2)
    want = alpha * (a64 @ b64) + beta * before
    rounding = 2.0**-8 if kernel.dtype == "bf16" else 2.0**-11
    room = (abs(alpha) * (a64.abs() @ b64.abs())) * 2.0**-20 + want.abs() * rounding * 1.01 + 1e-6
    worst = ((out.double() - want).abs() / room).nan_to_num(1e9).max().item()
    around = whole.clone()
    around[:, :m, :n] = float("nan")
    clean = bool(around.isnan().all())
    text = f"{m}x{n}x{k} batch {batch} alpha {alpha} beta {beta}: {worst:.3f} of the tolerance"
    return worst <= 1 and clean, text + ("" if clean else ", wrote outside")


CASES = ((128, 256, 64), (256, 256, 256), (1, 9, 8), (136, 264, 72), (100, 1000, 200), (77, 77, 77), (300, 513, 1001), (2048, 1536, 512))


def time_of(torch, run, repeats):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / repeats


def median(values):
    return sorted(values)[len(values) // 2]


class Peers:
    """torch.mm and the best of cuBLASLt's algorithms on the same operands, found once a size and layout."""

    def __init__(self, torch):
        import cuda_calls
        self.torch, self.calls, self.known = torch, cuda_calls, {}
        torch.mm(torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda"))
        self.blas = cuda_calls.find_blas()
        self.workspace = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)

    def best(self, kernel, size, a, b, out):
        key = (kernel.dtype, kernel.a_across, kernel.b_across, size)
        if key not in self.known:
            product = self.calls.Product(self.blas, kernel.dtype, size, size, size, kernel.a_across, not kernel.b_across, size,
                                         size, size, self.workspace.data_ptr(), 64 << 20)
            timed = []
            for algorithm in product.algorithms:
                def run(algorithm=algorithm):
                    product.run(algorithm, a.data_ptr(), b.data_ptr(), out.data_ptr())
                try:
                    run()
                    timed.append((time_of(self.torch, run, 10 if size < 8000 else 3), algorithm))
                except RuntimeError:
                    pass
            timed.sort(key=lambda t: t[0])
            self.known[key] = (product, timed[0][1])
        product, algorithm = self.known[key]
        return lambda: product.run(algorithm, a.data_ptr(), b.data_ptr(), out.data_ptr())


def measure(torch, kernel, peers, size, variants):
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[kernel.dtype]
    a, b = (torch.randn(1, size, size, device="cuda", dtype=dtype) for _ in range(2))
    a, b = (x.transpose(1, 2) if across else x for x, across in ((a, kernel.a_across), (b, kernel.b_across)))
    out, theirs = (torch.empty(1, size, size, device="cuda", dtype=dtype) for _ in range(2))
    repeats, flop = (20 if size < 8000 else 5), 2.0 * size**3
    runs = {"torch": lambda: torch.mm(a[0], b[0].t(), out=theirs[0]), "lt best": peers.best(kernel, size, a, b, theirs)}
    for name, options in variants.items():
        prepared = kernel.prepare(a, b, out, **options)
        runs[name] = lambda prepared=prepared: kernel.launch(prepared)
    times = {name: [] for name in runs}
    for _ in range(6):
        for name, run in runs.items():
            times[name].append(time_of(torch, run, repeats))
    worst = (out.double() - theirs.double()).abs().max().item()
    return {"kernel": kernel.name, "size": size, "tflops": {name: flop / median(t) * 1e-12 for name, t in times.items()}, "apart": worst}


def work(args, names, done):
    """Goes through `names`, saying what was begun and what has ended."""
    import torch
    from cuda_calls import Module
    torch.empty(1, device="cuda")
    with open(args.cubin, "rb") as f:
        module = Module(f.read())
    peers = Peers(torch)
    for name in names[done:]:
        say("begin", name)
        kernel = Kernel(module, name)
        good = True
        for i, (m, n, k) in enumerate(CASES):
            more = [{}, {"batch": 3, "alpha": 2.0, "beta": 0.5}, {"batch": 2, "a_batch": 1, "beta": 1.0, "group": 1}][i % 3]
            ok, text = check(torch, kernel, m, n, k, **more)
            good = good and ok
            if not ok:
                say("wrong", name, text)
        if good:
            for size in SIZES:
                variants = {f"g{g}": {"group": g} for g in GROUPS}
                if args.promotions:
                    variants |= {f"g8 p{p}": {"promotion": p} for p in (0, 2)}
                say("result", json.dumps(measure(torch, kernel, peers, size, variants)))
        say("end", name)
    say("all")


def names_of(cubin):
    with open(cubin, "rb") as f:
        found = re.findall(rb"\.text\.(kops_gemm_(?:bf16|f16)_[kx][kx]_\w+)", f.read())
    return list(dict.fromkeys(n.decode() for n in found))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cubin")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--out", default="")
    parser.add_argument("--promotions", action="store_true")
    parser.add_argument("--worker", type=int, default=-1)
    args = parser.parse_args()
    names = sorted(n for n in names_of(args.cubin) if re.search(args.only, n))
    if args.worker >= 0:
        return work(args, names, args.worker)
    begin, done, results, wrong = time.monotonic(), 0, [], []
    while done < len(names) and time.monotonic() - begin < args.seconds:
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--worker", str(done)]
        left = int(max(5, args.seconds - (time.monotonic() - begin)))
        child = subprocess.Popen(["timeout", str(left), *command], stdout=subprocess.PIPE, text=True)
        finished = False
        for line in child.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "wrong":
                wrong.append(rest)
                say("WRONG", rest)
            elif kind == "result":
                r = json.loads(rest)
                results.append(r)
                best = max(r["tflops"]["torch"], r["tflops"]["lt best"])
                say(r["kernel"][10:], r["size"], " ".join(f"{n}={t:.0f}" for n, t in r["tflops"].items()),
                    f"ratio={max(t for n, t in r['tflops'].items() if n not in ('torch', 'lt best')) / best:.3f} apart={r['apart']:.2g}")
            elif kind == "end":
                done += 1
            elif kind == "all":
                finished = True
        child.wait()
        if not finished and done < len(names):
            say("FAULT or time over:", names[done])
            done += 1
        if finished:
            break
    if args.out:
        with open(args.out, "w") as f:
            json.dump({"results": results, "wrong": wrong}, f, indent=1)
    say(f"{done} of {len(names)} kernels in {time.monotonic() - begin:.0f} s, {len(wrong)} wrong")


if __name__ == "__main__":
    main()
