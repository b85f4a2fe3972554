"""Calling: arguments, declarations, geometry, the compiler's messages, what a GPU refuses, the cache, interrupts."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kops
import numpy as np
import pytest
from conftest import Together, launch, params_of
from kops.interpret import InterpretError, _compiler, run

Fails = Callable[..., Any]
FILL = "__global__ void fill(float *c, float v, int n) {\n  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) c[i] = v;\n}"
SIGNATURE = "float* c, float v, int n"


def fill(c: Any, v: Any = 1, n: Any = None, **more: Any) -> None:
    launch(FILL, "fill", SIGNATURE, c, v, len(c) if n is None else n, **{"grid": "ceil_div(n, 32)", **more})


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((np.zeros(4, "f4"), 1), "2 arguments for 3"),
        ((np.zeros(4, "f8"), 1, 4), "dtype float64"),
        ((np.zeros((4, 4), "f4").T[:, 1:], 1, 4), "contiguous"),
        ((np.zeros(4, ">f4"), 1, 4), "swapped"),
        (([0.0], 1, 1), "list"),
        ((np.zeros(4, "f4"), "x", 4), "'x'"),
        ((np.zeros(4, "f4"), 1, 2**31), "i32"),
        ((np.zeros(4, "f4"), 1, 1.5), "i32"),
        ((np.broadcast_to(np.zeros((), "f4"), (1,)), 1, 1), "read-only"),
    ],
)
def test_bad_arguments(fails: Fails, args: tuple[Any, ...], why: str) -> None:
    assert why in str(fails("signature", FILL, "fill", SIGNATURE, *args))


@pytest.mark.parametrize(
    ("signature", "args"),
    [
        ("float* c, float v", (np.zeros(1, "f4"), 1)),
        ("double* c, float v, int n", (np.zeros(1, "f8"), 1, 1)),
        ("int* c, float v, int n", (np.zeros(1, "i4"), 1, 1)),
        ("float* c, int v, int n", (np.zeros(1, "f4"), 1, 1)),
        ("float* c, float v, long long n", (np.zeros(1, "f4"), 1, 1)),
        ("float c, float v, int n", (1, 1, 1)),
    ],
)
def test_declaration_that_is_not_the_sources(fails: Fails, signature: str, args: tuple[Any, ...]) -> None:
    assert "in the source" in str(fails("signature", FILL, "fill", signature, *args))


TYPES = {
    "half": {"f16": True, "f32": False, "bf16": False, "u16": True, "i16": True},
    "__nv_bfloat16": {"f32": False, "f16": False, "bf16": True},
    "half2": {"f16": True, "f32": False}, "float4": {"f32": True, "f16": False}, "int4": {"f16": True},
    "unsigned short": {"bf16": True}, "unsigned": {"i32": True, "f32": False}, "uint": {"u32": True}, "unsigned char": {"bool": True},
    "real": {"bf16": True, "f16": False}, "void": {"f64": True}, "struct S": {"f32": True},
}  # fmt: skip
typed = Together("#include <cuda_fp16.h>\n#include <cuda_bf16.h>\ntypedef __nv_bfloat16 real; struct S;\n")
POINTERS = {cpp: typed(f"__global__ void k({cpp} *c) {{}}") for cpp in TYPES}


@pytest.mark.parametrize(("cpp", "dtype"), [(cpp, dtype) for cpp, dtypes in TYPES.items() for dtype in dtypes])
def test_element_types_are_the_sources(cpp: str, dtype: str) -> None:
    names = {"bool": "?", "bf16": "u2"}
    c = np.zeros(16, names.get(dtype, f"{dtype[0]}{int(dtype[1:]) // 8}" if dtype[1:].isdigit() else "f4"))
    params = [{"name": "c", "kind": "inout", "dtype": dtype}]
    if TYPES[cpp][dtype]:
        kops.interpret.launch(POINTERS[cpp].load, "k", params, [c], grid=1, block=1)
    else:
        with pytest.raises(InterpretError, match=r"parameter 1 \(c\): declared as a tensor of .*, in the source it is .*write `") as caught:
            kops.interpret.launch(POINTERS[cpp].load, "k", params, [c], grid=1, block=1)
        assert caught.value.kind == "signature"


@pytest.mark.parametrize(
    "grid",
    ["m", "c", "n /", "n / 0", "n +* 2", "(n", "c.shape[2]", "c.width", "n n", "9999999999999999999", "v", "", "1;", "n" * 300,
     "n+" * 70 + "1", 2**40, -1, 0, (1, 70000), (1, 1, 1, 1), 1.5],
)  # fmt: skip
def test_bad_geometry(fails: Fails, grid: Any) -> None:
    fails("launch", FILL, "fill", SIGNATURE, np.zeros(4, "f4"), 1, 4, grid=grid)


@pytest.mark.parametrize(
    "more", [{"block": 1025}, {"block": (32, 33)}, {"block": (1, 1, 65)}, {"block": 0}, {"shared": 1 << 20}, {"shared": -1}]
)
def test_what_no_device_has(fails: Fails, more: dict[str, Any]) -> None:
    fails("launch", FILL, "fill", SIGNATURE, np.zeros(4, "f4"), 1, 4, **more)


def test_nothing_to_write_needs_no_blocks() -> None:
    fill(np.zeros(0, "f4"))
    fill(np.zeros(0, "f4"), block="n", shared=1 << 20, cluster=3)  # no more than the grid is looked at, as in launches


def test_clusters(fails: Fails) -> None:
    fill(np.zeros(64, "f4"), cluster=2)
    for cluster in (17, (4, 4, 2), 0, 3):
        fails("launch", FILL, "fill", SIGNATURE, np.zeros(64, "f4"), 1, 64, grid=2, cluster=cluster)


def test_what_blocks_one_after_another_cannot_do(fails: Fails) -> None:
    fill(np.zeros(64, "f4"), grid=1, cooperative=True)
    fill(np.zeros(64, "f4"), pdl=True)
    fails("launch", FILL, "fill", SIGNATURE, np.zeros(64, "f4"), 1, 64, grid=2, cooperative=True)
    mapped = kops.kernel("__global__ void f(const __grid_constant__ CUtensorMap x) {}", "f", "tma float* x box[8]", grid=1, block=1)
    with pytest.raises(kops.interpret.InterpretError, match="x is a tensor map") as caught:
        mapped.interpret(np.zeros(64, "f4"))
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize(
    "params",
    [
        [{"name": f"p{i}", "kind": "scalar", "dtype": "i32"} for i in range(33)],
        [{"name": f"p{i}", "kind": "in", "dtype": "i32"} for i in range(17)],
        [{"name": "a b", "kind": "scalar", "dtype": "i32"}],
        [{"name": "a", "kind": "scalar", "dtype": "f8_e4m3"}],
        [{"name": "a", "kind": "in", "dtype": "f32", "rank": 9}],
        [{"name": "a", "kind": "in", "dtype": "f32", "align": 3}],
        [{"name": "a", "kind": "scalar", "dtype": "i32", "rank": 0}],
    ],
)
def test_lists_that_the_daemon_refuses(params: list[dict[str, Any]]) -> None:
    with pytest.raises(InterpretError) as caught:
        run(FILL, "fill", params, [None] * len(params), grid=1, block=1)
    assert caught.value.kind == "signature"


def test_null_has_no_size() -> None:
    with pytest.raises(InterpretError, match="null pointer"):
        run(FILL, "fill", params_of(SIGNATURE)[1:] + [{"name": "c", "kind": "out", "dtype": "f32", "elements": "n"}], [1, 4, None],
            grid=1, block=1)  # fmt: skip


def test_all_of_shared_memory() -> None:
    source = "__global__ void k(float *c) { extern __shared__ float s[]; s[58111] = 1; c[0] = s[58111]; }"
    launch(source, "k", "float* c", np.zeros(1, "f4"), block=1, shared=227 * 1024)


def test_one_array_twice(fails: Fails) -> None:
    """As in launches: only with `alias`."""
    source = "__global__ void k(float *c, const float *a) { c[threadIdx.x] = a[threadIdx.x] + 1; }"
    a = np.arange(32, dtype="f4")
    error = fails("signature", source, "k", "float* c, const float* a", a, a)
    assert "c shares memory with a" in str(error) and "alias=True" in str(error)
    assert (a == np.arange(32)).all()
    launch(source, "k", "float* c, const float* a", a, a, alias=True)
    assert (a == np.arange(1, 33)).all()
    both = "__global__ void k(float *c, const float *a, const float *b) { c[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x]; }"
    c = np.zeros(32, "f4")
    launch(both, "k", "float* c, const float* a, const float* b", c, a, a)  # what is only read may be the same
    assert (c == 2 * a).all()


def test_lists_and_numbers_as_inputs() -> None:
    source = "__global__ void k(float *c, const long long *a, bool b) { c[threadIdx.x] = b ? a[threadIdx.x] : 0; }"
    c = np.zeros(3, "f4")
    launch(source, "k", "float* c, const long long* a, bool b", c, [1, 2, 3], True, block=3)
    assert c.tolist() == [1, 2, 3]


ELEMENTS = {"i8": "signed char", "u8": "unsigned char", "i16": "short", "u16": "unsigned short", "i32": "int", "u32": "unsigned",
            "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double", "bool": "bool"}  # fmt: skip
SETS = {dtype: typed(f"__global__ void k({cpp} *c, {cpp} v) {{ c[threadIdx.x] = v; }}") for dtype, cpp in ELEMENTS.items()}


def test_every_type() -> None:
    for dtype, part in SETS.items():
        c = np.zeros(4, "?" if dtype == "bool" else dtype[0] + str(int(dtype[1:]) // 8))
        params = [{"name": "c", "kind": "out", "dtype": dtype}, {"name": "v", "kind": "scalar", "dtype": dtype}]
        kops.interpret.launch(part.load, "k", params, [c, 1], grid=1, block=4)
        assert (c == 1).all(), dtype


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    c = torch.zeros(40)
    launch(FILL, "fill", SIGNATURE, c, 2, 40, grid=2)
    assert (c == 2).all()
    source = "#include <cuda_bf16.h>\n__global__ void k(__nv_bfloat16 *c) { c[threadIdx.x] = __float2bfloat16(threadIdx.x); }"
    b = torch.zeros(32, dtype=torch.bfloat16)
    launch(source, "k", "__nv_bfloat16* c", b)
    assert (b.float() == torch.arange(32)).all()


# ---- the compiler ----


NOT_COMPILED: dict[str, tuple[str, str, dict[str, str] | None, str]] = {  # a source, its entry, its files, and what the log says
    "a wrong name": (FILL.replace("c[i] = v", "c[i] = w"), "fill", None, "kernel.cu:3"),
    "no such entry": (FILL, "missing", None, ""),
    "no such template": (FILL, "fill<int>", None, ""),
    "an entry that is cut": (FILL, "fill(", None, ""),
    "no entry": (FILL, "", None, ""),
    "no such header": ('#include "nowhere.h"\n' + FILL, "fill", None, "nowhere.h"),
    "only declared": ("__device__ float other(float);\n" + FILL.replace("= v", "= other(v)"), "fill", None, "other"),
    "a file outside": (FILL, "fill", {"../x.h": ""}, ""),
}


@pytest.mark.parametrize("what", NOT_COMPILED)
def test_what_is_not_compiled(fails: Fails, what: str) -> None:
    source, entry, files, says = NOT_COMPILED[what]
    error = fails("compile", source, entry, SIGNATURE, np.zeros(1, "f4"), 1, 1, files=files)
    assert says in (error.log or "")


def test_inline_assembly(fails: Fails) -> None:
    source = FILL.replace("c[i] = v;", 'asm volatile("mov.u32 %0, %laneid;" : "=r"(i));')
    error = fails("unsupported", source, "fill", SIGNATURE, np.zeros(1, "f4"), 1, 1)
    assert "inline PTX, line 3 of kernel.cu" in str(error) and (error.file, error.line) == ("kernel.cu", 3) and error.log
    lines = '#include "ptx.h"\n' + FILL.replace("c[i] = v;", "c[i] = v + lane();") + "\nint main() { return 0; }"
    ptx = '__device__ int one() { asm volatile("" ::: "memory"); return 1; }\n'
    ptx += '__device__ int lane() {\n  int i;\n  asm("bar.sync 0;\\n\\t"\n      "add.s32 %0, 1, 2;"\n      : "=r"(i));\n  return i; }\n'
    error = fails("unsupported", lines, "fill", SIGNATURE, np.zeros(1, "f4"), 1, 1, files={"ptx.h": ptx})
    assert "inline PTX, line 4 of ptx.h" in str(error)
    with_branch = f"#ifdef KOPS_INTERPRET\n__device__ int lane() {{ return 2; }}\n#else\n{ptx}\n#endif\n"
    c = np.zeros(1, "f4")
    launch(lines, "fill", SIGNATURE, c, 1, 1, files={"ptx.h": with_branch})
    assert c[0] == 3
    # Another fault beside one is not put down to it.
    harmless = FILL.replace("c[i] = v;", 'asm volatile("" ::: "memory"); c[i] = w;')
    assert "w" in str(fails("compile", harmless, "fill", SIGNATURE, np.zeros(1, "f4"), 1, 1))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    _compiler.compiler.cache_clear()
    try:
        with pytest.raises(InterpretError, match="no-such-compiler") as caught:
            fill(np.zeros(1, "f4"))
        assert caught.value.kind == "compile"
    finally:
        monkeypatch.undo()
        _compiler.compiler.cache_clear()


def test_objects_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process compiles nothing; an object that is broken is made again; a cache that is anybody's is not used."""
    params = params_of(SIGNATURE)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    program = "import numpy\nfrom kops.interpret import run\nc = numpy.zeros(5, 'f4')\n"
    program += f"run({FILL!r}, 'fill', {params!r}, [c, 3, 5], grid=1, block=32)\nassert c.sum() == 15"
    cache = tmp_path / "kops" / "interpret"
    cache.mkdir(0o700, parents=True)
    runtime = _compiler.compile_runtime()
    shutil.copy(runtime, cache / runtime.name)

    def kept(compiles: bool = True) -> dict[str, int]:
        without = "" if compiles else "from kops.interpret import _compiler\n_compiler._call = None\n"
        subprocess.run([sys.executable, "-c", without + program], env=environment, check=True)
        return {path.name: path.stat().st_ino for path in cache.iterdir()}

    made = kept()
    assert len(made) == 2 and kept(compiles=False) == made
    (kernel,) = cache.glob("kernel-*.so")
    kernel.write_bytes(kernel.read_bytes()[:100])
    assert kept().keys() == made.keys() and kernel.stat().st_size > 100
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    where = _compiler.cache_directory.__wrapped__
    assert where("interpret") == cache
    cache.chmod(0o777)
    assert where("interpret") != cache


# ---- around a run ----


def test_errors_can_be_pickled(fails: Fails) -> None:
    error = fails("out_of_bounds", FILL, "fill", SIGNATURE, np.zeros(4, "f4"), 1, 5, grid=1)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.kind, copy.thread, copy.line) == (str(error), error.kind, error.thread, error.line)


def test_interrupt() -> None:
    main = threading.main_thread().ident
    assert main
    source = '__global__ void k(float *c) { printf("begun\\n"); for (;;) c[0] += 1; }'

    class Stdout:
        def write(self, _: str) -> None:
            signal.pthread_kill(main, signal.SIGINT)

        def flush(self) -> None:
            pass

    before, sys.stdout = sys.stdout, Stdout()  # type: ignore[assignment]
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(source, "k", "float* c", np.zeros(1, "f4"), block=1)
    finally:
        sys.stdout = before
    fill(np.zeros(5, "f4"))


def test_threads_take_turns() -> None:
    arrays = [np.zeros(1000, "f4") for _ in range(8)]
    threads = [threading.Thread(target=fill, args=(array, i)) for i, array in enumerate(arrays)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((array == i).all() for i, array in enumerate(arrays))


def test_runs_after_errors(fails: Fails) -> None:
    for _ in range(5):
        fails("out_of_bounds", FILL, "fill", SIGNATURE, np.zeros(4, "f4"), 1, 500, grid=4, block=128)
        c = np.zeros(2000, "f4")
        fill(c, 2, grid=2, block=1024)
        assert (c == 2).all()


def test_declaration_as_objects() -> None:
    class Item:
        def __init__(self, **fields: str) -> None:
            self.__dict__.update(fields)

    c = np.zeros(3, "f4")
    run(FILL, "fill", [Item(**p) for p in params_of(SIGNATURE)], [c, 4, 3], grid=1, block=32)
    assert c.tolist() == [4, 4, 4]


def test_strided_arrays() -> None:
    source = "__global__ void k(int *c, int stride) { c[(int)threadIdx.x * stride] += threadIdx.x; }"
    memory = np.zeros(40, "i4")
    params = [{"name": "c", "kind": "inout", "dtype": "i32", "strided": True}, {"name": "stride", "kind": "scalar", "dtype": "i32"}]
    run(source, "k", params, [memory[::-4], -4], grid=1, block=10)
    assert memory[::-4].tolist() == list(range(10)) and memory.sum() == 45
    with pytest.raises(InterpretError) as caught:
        run(source, "k", params, [memory[::-4], 4], grid=1, block=10)
    assert (caught.value.tensor, caught.value.index) == ("c", 4)


@pytest.mark.parametrize(
    ("declared", "good"),
    [
        ({"shape": (4, "n")}, True), ({"shape": (None, 3)}, True), ({"shape": (3, 4)}, False), ({"shape": (12,)}, False),
        ({"elements": "n * 4"}, True), ({"elements": 13}, False), ({"rank": 2}, True), ({"rank": 1}, False),
    ],
)  # fmt: skip
def test_declared_shapes(declared: dict[str, Any], good: bool) -> None:
    params = [{"name": "c", "kind": "out", "dtype": "i32", **declared}, {"name": "n", "kind": "scalar", "dtype": "i32"}]

    def call() -> None:
        run("__global__ void k(int *c, int n) { c[0] = n; }", "k", params, [np.zeros((4, 3), "i4"), 3], grid=1, block=1)

    if good:
        call()
    else:
        with pytest.raises(InterpretError, match="declared"):
            call()


def test_arrays_that_overlap(fails: Fails) -> None:
    source = "__global__ void k(float *c, const float *a) { c[threadIdx.x] = a[threadIdx.x]; }"
    memory = np.zeros(33, "f4")
    memory[:] = np.arange(33)
    assert "c shares memory with a" in str(fails("signature", source, "k", "float* c, const float* a", memory[1:], memory[:-1]))
    launch(source, "k", "float* c, const float* a", memory[1:17], memory[17:], block=16)
    assert memory[1:17].tolist() == memory[17:].tolist() == list(range(17, 33))
    memory[:] = np.arange(33)
    launch(source, "k", "float* c, const float* a", memory[:-1], memory[1:], alias=True)
    assert memory.tolist() == [*range(1, 33), 32]


def test_overlap_is_decided_by_elements(fails: Fails) -> None:
    source = "__global__ void k(int *c, const int *a) { c[threadIdx.x * 4] = a[threadIdx.x * 4] + 1; }"
    matrix = np.arange(32, dtype="i4").reshape(8, 4)
    params = [{"name": "c", "kind": "out", "dtype": "i32", "strided": True}, {"name": "a", "kind": "in", "dtype": "i32", "strided": True}]
    run(source, "k", params, [matrix[:, 2], matrix[:, 1]], grid=1, block=8)
    assert (matrix[:, 2] == matrix[:, 1] + 1).all() and matrix[:, 3].tolist() == list(range(3, 32, 4))
    repeated = np.lib.stride_tricks.as_strided(matrix[:, 0], (8, 2), (16, 0))
    for alias in (False, True):
        how = {"grid": 1, "block": 8, "alias": alias}
        if alias:
            run(source, "k", params, [repeated, matrix[:, 1]], **how)
        else:
            with pytest.raises(InterpretError, match="elements of it share memory"):
                run(source, "k", params, [repeated, matrix[:, 1]], **how)


def test_two_processes_make_the_same_object(tmp_path: Path) -> None:
    """The first one's stays: a process may have given up all files but that one. One that others could write does not."""
    kept = tmp_path / "kernel-1.so"
    for text in ("first", "second"):
        made = tmp_path / text
        made.write_text(text)
        _compiler._keep(str(made), kept)
        if text == "first":
            inode = kept.stat().st_ino
    assert kept.read_text() == "first" and kept.stat().st_ino == inode
    kept.chmod(0o777)
    _compiler._keep(str(tmp_path / "second"), kept)
    assert kept.read_text() == "second"


BODY = "(int *y) { y[threadIdx.x] = 1; }"


@pytest.mark.parametrize(
    "source, entry, threads",
    [
        ("__global__ void __launch_bounds__(128) k" + BODY, "k", 128),
        ("constexpr int N = 32; namespace a { constexpr int M = 2; __launch_bounds__(N * M, 2) __global__ void k" + BODY + "}", "a::k", 64),
        ("template <typename T, int N = 2> __global__ void __launch_bounds__(N * 32) k(T *y) { y[threadIdx.x] = 1; }", "k<int>", 64),
        ("template <typename T, int N = 2> __global__ void __launch_bounds__(N * 32) k(T *y) { y[threadIdx.x] = 1; }", "k<int, 4>", 128),
        (
            "#define BOUNDS(x) __launch_bounds__(x)\n__global__ void k" + BODY + "\n__global__ void __launch_bounds__(8) other" + BODY,
            "k",
            1024,
        ),
    ],
)
def test_launch_bounds(fails: Fails, source: str, entry: str, threads: int) -> None:
    y = np.zeros(1024, "i4")
    launch(source, entry, "int* y", y, block=threads)
    assert y.sum() == threads
    if threads < 1024:
        error = fails("launch", source, entry, "int* y", y, block=2 * threads)
        assert f"a block of {2 * threads} threads" in str(error) and f"allow {threads}" in str(error)


def test_too_much_static_shared_memory(fails: Fails) -> None:
    """Of one kernel: what others of the source have does not count."""
    source = "template <int N> __global__ void k(int *y) { __shared__ float s[N << 8]; s[0] = 1; y[0] = s[0]; }\n"
    source += "__global__ void other(int *y) { __shared__ float s[40 << 8]; s[1] = 1; y[0] = s[1]; }"
    y = np.zeros(1, "i4")
    launch(source, "k<48>", "int* y", y, block=1)
    error = fails("compile", source, "k<49>", "int* y", y, block=1)
    assert "uses too much shared data" in str(error) and "50176 bytes" in str(error)


@pytest.mark.parametrize("entry, closest", [("transpos", "transpose"), ("scal", "scale"), ("ns::inne", "ns::inner")])
def test_misspelt_entry(fails: Fails, entry: str, closest: str) -> None:
    source = f"__global__ void scale{BODY}\n__global__ void transpose{BODY}\nnamespace ns {{ __global__ void inner{BODY} }}"
    error = fails("compile", source, entry, "int* y", np.zeros(1, "i4"))
    assert str(error).startswith(f"the source has no kernel {entry}; it has {closest}, ")
    assert all(name in str(error) for name in ("scale", "transpose", "ns::inner"))


@pytest.mark.parametrize(
    "name, text",
    [
        ("tex2D", "y[0] = tex2D<float>(0ull, 1.0f, 2.0f);"),
        ("cudaTextureObject_t", "cudaTextureObject_t t;"),
        ("this_cluster", "y[0] = cooperative_groups::this_cluster().size();"),
        ("__mbarrier_init", "__mbarrier_init(nullptr, 3);"),
        ("BlockRadixSort", "typedef cub::BlockRadixSort<int, 128, 4> Sort;"),
    ],
)
def test_function_that_is_of_cuda(fails: Fails, name: str, text: str) -> None:
    source = f"#include <cooperative_groups.h>\n#include <cub/cub.cuh>\n__global__ void k(int *y)\n{{\n{text}\n}}"
    error = fails("unsupported", source, "k", "int* y", np.zeros(1, "i4"))
    assert f"`{name}` is a CUDA" in str(error) and "on a GPU this kernel may be right" in str(error) and error.line == 5


def test_header_that_is_of_cuda(fails: Fails) -> None:
    error = fails("unsupported", f"#include <cub/device/device_reduce.cuh>\n__global__ void k{BODY}", "k", "int* y", np.zeros(1, "i4"))
    assert "`cub/device/device_reduce.cuh` is a CUDA header" in str(error)


@pytest.mark.parametrize("text", ["y[0] = vadd5(1, 2);", "y[0] = __vadd5(1, 2);", "tile t;", "y[0] = cooperative_groups::nothing(3);"])
def test_name_that_is_of_nothing(fails: Fails, text: str) -> None:
    source = f"#include <cooperative_groups.h>\n__global__ void k(int *y) {{ {text} }}"
    assert "CUDA" not in str(fails("compile", source, "k", "int* y", np.zeros(1, "i4")))
