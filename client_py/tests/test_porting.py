"""From a tutorial's source to the kernels alone and Python: the answers of `load_inline`, and that what they say to paste runs."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import pytest
from kops._clients import inline as _inline
from kops._source.porting import port
from kops._source.tokens import tokens
from which import compiled_only

pytestmark = compiled_only

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("KOPS_BUILD")
KERNEL = 'extern "C" __global__ void f(float* y, const float* x, int n) { y[0] = x[0]; }\n'
HEAD = KERNEL + "#include <torch/extension.h>\n"


def made(body: str, params: str = "torch::Tensor x, int n, float s", before: str = "") -> list[str]:
    """The lines of a function in Python."""
    ported = port("m", "", f"{HEAD}{before}torch::Tensor g({params}) {{\n{body}\n}}\n", ["g"])
    assert ported is not None and not ported.missing, ported
    text = ported.replacement
    return [line[4:] for line in text[text.index("def g(") : text.index("\n\n\nm = ")].split("\n")[1:]]


@pytest.mark.parametrize(
    "cxx, python",
    [
        ("int a = n / 2;", "a = n // 2"),
        ("float a = n / 2.0f;", "a = n / 2.0"),
        ("auto a = (float)n / 2;", "a = n / 2"),
        ("int a = n / 2.0;", "a = int(n / 2.0)"),
        ("int a = std::ceil(n / 256.0);", "a = math.ceil(n / 256.0)"),
        ("const unsigned int a = (n + 255u) / 256u * (2 - (3 - n));", "a = (n + 255) // 256 * (2 - (3 - n))"),
        ("int a = n >> 1 << 2 & 0xff;", "a = n >> 1 << 2 & 0xff"),
        ("int a = n > 3 && n != 5 || !(n == 7) ? 1 : -n;", "a = 1 if n > 3 and n != 5 or not n == 7 else -n"),
        ("bool a = (n < 3) == true;", "a = (n < 3) == True"),
        ("int a = std::min<int>(n, 65535), b = max(a, 1);", "a = min(n, 65535)\nb = max(a, 1)"),
        ("int64_t a = x.size(0) * x.size(-1);", "a = x.shape[0] * x.shape[-1]"),
        ("dim3 a(n, 2); int b = a.y;", "a = (n, 2, 1)\nb = a[1]"),
        ("dim3 a = {n, 2, 3};", "a = (n, 2, 3)"),
        ("auto a = x.options().dtype(torch::kInt32).requires_grad(false);",
         "a = dict(dtype=torch.int32, device=x.device, requires_grad=False)"),
        ("auto o = x.options(); auto a = torch::empty({n, 2}, o.dtype(at::kHalf));",
         'o = dict(dtype=x.dtype, device=x.device)\na = torch.empty((n, 2), **{**o, "dtype": torch.float16})'),
        ("auto a = torch::full({n}, s, torch::device(torch::kCUDA).dtype(torch::kFloat32));",
         "a = torch.full((n,), s, device='cuda', dtype=torch.float32)"),
        ("auto a = x.to(torch::kFloat64).sum().item<double>();", "a = x.to(torch.float64).sum().item()"),
        ("size_t a = n * sizeof(double) + sizeof(float4);", "a = n * 8 + 16"),
        ("if (n > 1) { n -= 1; } else if (n) n /= 2; else { n++; }",
         "if n > 1:\n    n -= 1\nelse:\n    if n:\n        n //= 2\n    else:\n        n += 1"),
        ("for (int i = 1; i <= n; i += 2) s += i;", "for i in range(1, n + 1, 2):\n    s += i"),
        ("for (int i = n; i > 1; i /= 2) s += i;", "i = n\nwhile i > 1:\n    s += i\n    i //= 2"),
        ("for (int i = 0; i < n; i++) { if (i == 2) { i = 3; } }",
         "i = 0\nwhile i < n:\n    if i == 2:\n        i = 3\n    i += 1"),
        ("f<<<1, n>>>(x.data_ptr<float>(), nullptr, n);", "f[1, n](x, None, n)"),
        ("f<<<dim3(n), dim3(2, 2), n * 4, at::cuda::getCurrentCUDAStream()>>>((float*)x.data_ptr(), x.data_ptr<float>() + n, 1);",
         "f[(n, 1, 1), (2, 2, 1), n * 4](x, x.view(-1)[n:], 1)"),
        ("float* p = reinterpret_cast<float*>(x.data_ptr()); f<<<1, 1>>>(p, p, n);", "p = x\nf[1, 1](p, p, n)"),
        ("TORCH_CHECK(x.is_cuda() && x.scalar_type() == torch::kFloat, \"x: \" \"no\", n);",
         "if not (x.is_cuda and x.dtype == torch.float32):\n    raise RuntimeError(\"\".join(map(str, ('x: no', n))))"),
        ("int in = n; int None = in;", "in_ = n\nNone_ = in_"),
        ("cudaError_t e = cudaGetLastError(); if (e != cudaSuccess) { printf(\"%s\", cudaGetErrorString(e)); exit(1); }", "pass"),
        ("return {x, x};", "return (x, x)"),
        ("return;", "return"),
    ],
)
def test_what_cxx_becomes(cxx: str, python: str) -> None:
    assert "\n".join(made(cxx)) == python


def test_constants_and_macros() -> None:
    before = "#define TILE 16\n#define AREA (TILE * 2)\nconstexpr int W = AREA + 1;\n#define UP(a, b) (((a) + (b) - 1) / (b))\n"
    assert made("int a = UP(n, W);", before=before) == ["a = (n + W - 1) // W"]
    ported = port("m", "", f"{HEAD}{before}int g(int n) {{ return UP(n, W); }}", ["g"])
    assert ported is not None and "TILE = 16\nAREA = TILE * 2\nW = AREA + 1\n" in ported.replacement


@pytest.mark.parametrize(
    "body, line, why",
    [
        ("\nfloat* d;\ncudaMalloc(&d, n);", 5, "`&` of an address"),
        ("cudaError_t e = cudaMalloc((void**)p, n);", 3, "cudaMalloc"),
        ("auto a = x.packed_accessor32<float, 2, torch::RestrictPtrTraits>();", 3, "packed_accessor32"),
        ("float buffer[4];", 3, "the array `buffer`"),
        ("g<<<1, 1>>>(n);", 3, "`g` is no kernel of the source"),
        ("auto h = [&](int i) { return i; };", 3, "a function without a name"),
        ("int a = unknown + 1;", 3, "`unknown` is not known"),
        ("for (auto& t : list) { n++; }", 3, "a loop over a range"),
        ("do { n--; } while (n > 0);", 3, "a loop with its condition at the end"),
        ("throw std::runtime_error(\"no\");", 3, "throw"),
        ("AT_DISPATCH_COMPLEX_TYPES(x.scalar_type(), \"f\", [&] { });", 3, "AT_DISPATCH_COMPLEX_TYPES"),
        ("int a = (n + 1;", 3, "brackets|is not understood|expected"),
    ],
)
def test_what_has_no_translation_is_said_with_its_line(body: str, line: int, why: str) -> None:
    ported = port("m", "", f"{HEAD}torch::Tensor g(torch::Tensor x, int n) {{{body}\nreturn x;\n}}\n", ["g"])
    assert ported is not None and ported.missing
    assert ported.missing[0][0] == line and re.search(why, ported.missing[0][1]), ported.missing
    namespace: dict[str, Any] = {}
    text = ported.replacement.replace("import torch\n", "").replace("import kops\n", "kops = __import__('kops')\n")
    exec(compile(text, "replacement", "exec"), namespace)
    with pytest.raises(NotImplementedError, match=f"line {ported.missing[0][0]} of the C\\+\\+"):
        namespace["g"](None, 0)


def test_templates_and_programs() -> None:
    source = "template <typename T> __global__ void t(T* y) {}\n#define BLOCK 64\n"
    ported = port("m", "", source + "void g(torch::Tensor y) {\n t<<<1, 1>>>(y.data_ptr<float>()); }\nint main() { return 0; }\n", None)
    assert ported is not None
    assert [(line, why.partition(":")[0]) for line, why in ported.missing] == [(4, "`t` is a template"), (5, "main() is the program")]
    launch = "t<scalar_t><<<1, BLOCK>>>(y.data_ptr<scalar_t>());"
    dispatch = f'AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, y.scalar_type(), "g", [&] {{ {launch} }});'
    ported = port("m", "", f"{source}void g(torch::Tensor y) {{ {dispatch} }}\n", None, ["-DN=1"], {"x.h": "/there/x.h"})
    assert ported is not None and not ported.missing and ported.entries == []
    for text in (
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\ntemplate", "BLOCK = 64", "import pathlib",
        "torch.bfloat16: kops.kernel(source, 't<__nv_bfloat16>', options=['-DN=1'], files=files),",
        "files = {name: pathlib.Path(path).read_text() for name, path in {'x.h': '/there/x.h'}.items()}",
        "    if y.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):\n",
        "    t[y.dtype][1, BLOCK](y)\n",
    ):  # fmt: skip
        assert text in ported.replacement
    concrete = port("m", "", f"{source}void g(torch::Tensor y) {{ t<float><<<1, 1>>>(y.data_ptr<float>()); }}\n", None)
    assert concrete is not None and concrete.entries == ["t<float>"] and "t[1, 1](y)" in concrete.replacement


def test_the_same_memory_twice_is_declared() -> None:
    text = "\n".join(made("f<<<1, 1>>>(x.data_ptr<float>(), x.data_ptr<float>(), n);"))
    ported = port("m", "", f"{HEAD}void g(torch::Tensor x, int n) {{ f<<<1, 1>>>(x.data_ptr<float>(), x.data_ptr<float>(), n); }}\n", None)
    assert ported is not None and "alias=True" in ported.replacement and text


def test_the_page_shows_what_is_answered() -> None:
    page = (ROOT / "client_py" / "README.md").read_text(encoding="utf-8")
    source = page[page.index('tutorial = """') + len('tutorial = """') :]
    shown = page[page.index('import kops\nimport torch\n\nsource = r"""\n__global__') :].partition("```")[0]
    ported = port("tutorial", "", source.partition('"""')[0], ["square"])
    assert ported is not None and shown in ported.replacement


def test_nothing_for_the_host() -> None:
    assert port("m", "torch::Tensor g(torch::Tensor x);", KERNEL, ["g"]) is None


def test_what_is_missing_in_cpp_sources_is_said_so() -> None:
    ported = port("m", "void g(torch::Tensor x) {\n  int a = nothing;\n}\n", KERNEL, ["g"])
    assert ported is not None and ported.missing == [(2, "`nothing` is not known (in cpp_sources)")] and ported.lines == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_any_text_gets_an_answer() -> None:
    """Tutorials with words left out, repeated or exchanged: what comes is Python, whatever the C++ was."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.tutorials import TUTORIALS

    rng = random.Random(5)
    answers = 0
    for _ in range(400):
        tutorial, texts = rng.choice(TUTORIALS), []
        words = tokens(tutorial.cuda)
        for text in (tutorial.cpp, tutorial.cuda):
            for _ in range(rng.randint(1, 3)):
                at = rng.choice(tokens(text) or words)
                put = rng.choice(("", f"{at.text} {at.text}", rng.choice(words).text))
                text = text[: at.start] + put + text[at.start + len(at.text) :]
            texts.append(text)
        ported = port(tutorial.name, *texts, [tutorial.function])
        if ported is not None:
            compile(ported.replacement, "replacement", "exec")
            answers += bool(ported.missing)
    assert answers > 50


def test_texts_with_quotes() -> None:
    ported = port("m", "", HEAD + 'void g() {}\n__device__ const char* a = "\'\'\'"; // """\n', [])
    assert ported is not None
    compile(ported.replacement, "replacement", "exec")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="the interpreter needs a compiler")
@pytest.mark.skipif(not ("KOPSD" in os.environ or (BUILD and Path(BUILD, "bin/kopsd").exists())), reason="no daemon: name it in KOPSD")
class TestTutorials:
    """What is to be pasted, run on a daemon without a GPU."""

    @pytest.fixture(scope="class")
    def socket(self) -> Iterator[str]:
        sys.path.insert(0, str(ROOT / "tests"))
        from support import backends
        from support.daemon import Daemon

        with Daemon(config=backends.config(backends.HOST)) as running:
            yield running.socket_path

    @pytest.mark.parametrize("i", range(7))
    def test_it_runs(self, socket: str, i: int, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
        import torch
        from support.tutorials import TUTORIALS, answer

        assert len(TUTORIALS) == 7
        monkeypatch.setenv("KOPS_SOCKET", socket)
        monkeypatch.setattr(_inline, "_default", None)
        monkeypatch.setattr(kops, "kernel", functools.partial(kops.kernel, fallback="interpret"))
        tutorial = TUTORIALS[i]
        function, missing = answer(kops, tutorial)
        assert missing == []
        inputs = tutorial.inputs("cpu")
        torch.testing.assert_close(function(*inputs), tutorial.expected(*inputs), atol=1e-5, rtol=1e-4)
        kops.default_client().close()
