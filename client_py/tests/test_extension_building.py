"""Extensions of a setup.py, functions of a TORCH_LIBRARY as torch's ops, and what torch itself is left to compile."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import kops
import pytest
from kops.extension import _builder, _cxx
from which import compiled_only

numpy = pytest.importorskip("numpy")
pytest.importorskip("setuptools")
pytestmark = [
    compiled_only,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="there is no C++ compiler"),
]
SETUP = """
from setuptools import setup
from kops import BuildExtension, CUDAExtension

setup(
    name="scaled", packages=["scaled"],
    ext_modules=[CUDAExtension("scaled._C", ["csrc/scale.cpp", "csrc/scale_kernel.cu"], include_dirs=["csrc/include"],
                               define_macros=[("FACTOR", "3")], extra_compile_args={"cxx": ["-O2"], "nvcc": ["-O3", "-DPLUS=1"]})],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
)
"""
CPP = """#include <torch/extension.h>
#include "scale.h"
torch::Tensor scale(torch::Tensor x) { TORCH_CHECK(x.is_contiguous(), "x must be contiguous"); return scale_cuda(x); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale, "Scales."); }
"""
CUDA = """#include <torch/extension.h>
#include "scale.h"
__global__ void scale_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = FACTOR * x[i] + PLUS;
}
torch::Tensor scale_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    scale_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "setup.py": SETUP, "scaled/__init__.py": "from ._C import scale\n", "csrc/scale.cpp": CPP, "csrc/scale_kernel.cu": CUDA,
        "csrc/include/scale.h": "#pragma once\ntorch::Tensor scale_cuda(torch::Tensor x);\n",
    }.items():  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KOPS_INTERPRET": "1", "PYTHONPATH": str(Path(kops.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)


def test_setup_py(project: Path, tmp_path: Path) -> None:
    built = run(project, "setup.py", "build_ext", "--inplace")
    assert built.returncode == 0, built.stderr
    (project / "csrc" / "scale_kernel.cu").unlink()  # the module has the sources
    program = "import numpy, scaled\nprint(scaled.scale(numpy.arange(3, dtype='float32')), scaled.scale.__doc__)"
    ran = run(project, "-c", program)
    assert ran.stdout == "[1. 4. 7.] Scales.\n", ran.stderr


SECOND = """
import json, sys
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
import kops
made = kops.load_inline("second", "int64_t twice(int64_t n) { return 2 * n; }", None, ["twice"])
late = sorted({"kops.interpret", "kops.extension._cxx", "kops.extension._ops"} & set(sys.modules))
print(json.dumps([made.twice(21), late, [path for path in opened if path.endswith(".h")]]))
"""


def test_a_process_that_finds_the_object_imports_and_reads_nothing_to_compile_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPS_SOCKET", str(tmp_path / "none.sock"))
    assert run(tmp_path, "-c", SECOND).returncode == 0
    ran = run(tmp_path, "-c", SECOND)
    assert ran.stdout == "[42, [], []]\n", ran.stdout + ran.stderr


def test_two_processes_tidy_one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that another process removes while this one looks is the oldest."""
    monkeypatch.setattr(_cxx, "directory", lambda: tmp_path)
    monkeypatch.setattr(_cxx, "KEEP", {"extension": 2})
    for age, name in enumerate(("new", "old", "older")):
        (tmp_path / f"extension-{name}.so").touch()
        os.utime(tmp_path / f"extension-{name}.so", (1000 - age, 1000 - age))
    stat = Path.stat

    def removed_meanwhile(path: Path, **how: Any) -> os.stat_result:
        if path.name == "extension-older.so":
            path.unlink(missing_ok=True)
        return stat(path, **how)

    monkeypatch.setattr(Path, "exists", os.path.exists)
    monkeypatch.setattr(Path, "stat", removed_meanwhile)
    _cxx._tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["extension-new.so", "extension-old.so"]


def test_the_hash_of_the_headers_is_kept_until_one_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, cache = tmp_path / "extension", tmp_path / "cache"
    shutil.copytree(_builder.HERE, package, ignore=shutil.ignore_patterns("*.pyc"))
    cache.mkdir()
    monkeypatch.setattr(_builder, "HERE", str(package))
    monkeypatch.setattr(_builder, "directory", lambda: cache)
    made = _builder.hash_of_headers.__wrapped__
    first = made()
    assert first == _builder.hash_of_headers() and not any(cache.iterdir()), "files that have just changed may change again"
    monkeypatch.setattr(_cxx, "SETTLED_SECONDS", -1)
    assert made() == first
    (kept,) = cache.iterdir()
    kept.write_text("0" * _builder.HASH_CHARACTERS)
    assert made() == "0" * _builder.HASH_CHARACTERS
    kept.write_text("")
    assert made() == first == kept.read_text(), "one that was not written to its end is made again"
    header = package / "include" / "kops" / "abi.h"
    text = header.read_text()
    header.write_text(text.replace("a", "b", 1))
    assert made() not in (first, "0" * _builder.HASH_CHARACTERS)
    header.write_text(text)
    assert made() == first, "times are no part of it"


OPERATOR = """#include <Python.h>
#include <ATen/Operators.h>
#include <torch/all.h>
#include <torch/library.h>
extern "C" {
PyObject* PyInit__C(void) {
    static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_C", NULL, -1, NULL};
    return PyModule_Create(&module_def);
}
}
namespace mine {
at::Tensor muladd_cpu(const at::Tensor& a, const at::Tensor& b, double c) {
    TORCH_INTERNAL_ASSERT(a.device().type() == at::DeviceType::CPU);
    at::globalContext().alertNotDeterministic("muladd");
    auto result = torch::empty(a.sizes(), a.options());
    for (int64_t i = 0; i < a.numel(); i++) result.data_ptr<float>()[i] = a.data_ptr<float>()[i] * b.data_ptr<float>()[i] + c;
    return result;
}
TORCH_LIBRARY(mine, m) { m.def("muladd(Tensor a, Tensor b, float c=1.0) -> Tensor"); }
TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("muladd", &muladd_cpu); }
}
"""


def test_an_operator_of_torch_as_its_own_tutorial_has_it(tmp_path: Path) -> None:
    (tmp_path / "muladd.cpp").write_text(OPERATOR)
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\nfrom kops import CUDA_HOME, BuildExtension, CppExtension\nassert CUDA_HOME\n"
        'setup(name="mine", ext_modules=[CppExtension("_C", ["muladd.cpp"], extra_compile_args={"cxx": ["-O3", "-DPy_LIMITED_API=1"]}, '
        'py_limited_api=True)], cmdclass={"build_ext": BuildExtension})\n'
    )
    built = run(tmp_path, "setup.py", "build_ext", "--inplace")
    assert built.returncode == 0, built.stderr
    ran = run(tmp_path, "-c", "import numpy, _C\nx = numpy.ones(2, 'float32')\nprint(_C.muladd(x, x), _C.muladd(x, x, c=3))")
    assert ran.stdout == "[2. 2.] [4. 4.]\n", ran.stderr
    if importlib.util.find_spec("torch") is not None:
        ran = run(tmp_path, "-c", "import torch, _C\nx = torch.ones(2)\nprint(torch.ops.mine.muladd.default(x, x).tolist())")
        assert ran.stdout == "[2.0, 2.0]\n", ran.stderr


def test_setup_py_tells_what_does_not_compile(project: Path) -> None:
    (project / "csrc" / "scale.cpp").write_text(CPP.replace("return scale_cuda(x)", "return nothing(x)"))
    built = run(project, "setup.py", "build")
    assert built.returncode != 0 and "csrc/scale.cpp:3: " in built.stderr and "nothing" in built.stderr
    (project / "csrc" / "scale.cpp").write_text("#include <torch/extension.h>\n")
    built = run(project, "setup.py", "build")
    assert built.returncode != 0 and "no source has a PYBIND11_MODULE" in built.stderr


CALLS: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture
def cpp_extension(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """torch's module, which notes what it is asked for."""
    CALLS.clear()
    torch, utils, made = (types.ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.cpp_extension"))
    torch.__version__, torch.Tensor, torch.dtype, torch.device = "2", type("Tensor", (), {}), type("dtype", (), {}), type("device", (), {})
    for name in ("load", "load_inline"):
        setattr(made, name, lambda _name=name, **given: CALLS.append((_name, given)) or "torch's")
    torch.utils, utils.cpp_extension = utils, made  # type: ignore[attr-defined]
    for module in (torch, utils, made):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return CALLS


HEAD = "#include <torch/extension.h>\n"


def test_torch_compiles_what_does_not_compile_here(cpp_extension: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_ = HEAD + '''struct S { int x; };
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { py::class_<S>(m, "S").def(py::init<>()).def_readwrite("x", &S::x); }
'''
    with pytest.raises(kops.CompileFailed, match="py::class_"):
        kops.load_inline("classes", class_)
    assert not cpp_extension
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="classes is compiled by torch, since classes: .*py::class_"):
            assert kops.load_inline("classes", class_, fallback="torch", extra_cuda_cflags=["-O3"]) == "torch's"
    (name, given), (_, again) = cpp_extension
    assert name == "load_inline" and given["cpp_sources"] == class_ and given["extra_cuda_cflags"] == ["-O3"] and "functions" not in given
    assert Path(given["build_directory"]).is_dir() and given["build_directory"] == again["build_directory"]
    assert Path(given["build_directory"]).stat().st_mode & 0o77 == 0
    with pytest.warns(RuntimeWarning, match="-lmine"):
        kops.load_inline("linked", HEAD + "int f() { return 1; }\n", functions="f", extra_ldflags=["-lmine"], fallback="torch")
    assert cpp_extension[2][1]["build_directory"] != again["build_directory"] and cpp_extension[2][1]["extra_ldflags"] == ["-lmine"]
    (tmp_path / "a.cpp").write_text(class_)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RuntimeWarning):
        kops.load(name="files", sources=["a.cpp"], build_directory=str(tmp_path / "mine"), fallback="torch")
    assert cpp_extension[3][0] == "load" and cpp_extension[3][1]["sources"] == [str(tmp_path / "a.cpp")] and (tmp_path / "mine").is_dir()
    assert kops.load_inline("right", HEAD + "int f() { return 1; }\n", functions="f", fallback="torch").f() == 1 and len(cpp_extension) == 4


def test_without_torch_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils", None)
    with pytest.raises(kops.CompileFailed, match="nothing"):
        kops.load_inline("wrong", HEAD + "int f() { return nothing; }\n", functions="f", fallback="torch")


LIBRARY = HEAD + """
torch::Tensor twice(torch::Tensor x, int64_t n, const c10::optional<torch::Tensor>& y, std::vector<double> z, std::string s) {
    return x * n;
}
std::tuple<torch::Tensor, int64_t> pair(torch::TensorList l, at::ScalarType t, bool b) { return {l[0], 1}; }
void none(at::IntArrayRef sizes, at::Scalar s, c10::optional<int64_t> n) {}
int small(int n) { return n; }
torch::Tensor scaled(torch::Tensor x, double by) { return x * by; }
TORCH_LIBRARY(kops_test, m) {
    m.def("twice", &twice); m.def("pair", &pair); m.def("none", &none); m.def("small", &small);
    m.def("scaled(Tensor x, float by=3.0) -> Tensor");
}
TORCH_LIBRARY_IMPL(kops_test, CUDA, m) { m.impl("scaled", &scaled); }
"""


@pytest.mark.parametrize("compiler", [name for name in ("g++", "clang++") if shutil.which(name)])
def test_schemas_are_those_of_the_types(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kops.extension import _ops

    monkeypatch.setenv("CXX", compiler)
    mod = kops.load_inline("library", LIBRARY, fallback="interpret")
    schemas = [_ops.inferred(getattr(mod, name)._definitions[0]) for name in ("twice", "pair", "none", "small")]
    assert schemas == [
        "(Tensor _0, int _1, Tensor? _2, float[] _3, str _4) -> Tensor", "(Tensor[] _0, ScalarType _1, bool _2) -> (Tensor, int)",
        "(int[] _0, Scalar _1, int? _2) -> ()", "",
    ]  # fmt: skip


def test_functions_of_a_library_are_torchs_ops() -> None:
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(kops.Unsupported, match="is_python_module=False: .*no torch"):
            kops.load_inline("library", LIBRARY, is_python_module=False)
        pytest.skip("PyTorch is not installed")
    import torch

    for _ in range(2):  # a second one is no error
        path = kops.load_inline("library", LIBRARY, is_python_module=False, fallback="interpret")
        assert os.path.isfile(path)
        x = torch.ones(2)
        assert torch.ops.kops_test.twice(x, 2, None, [1.0], "a").tolist() == [2, 2] and torch.ops.kops_test.scaled(x).tolist() == [3, 3]
        assert torch.ops.kops_test.pair([x], torch.float16, True)[1] == 1


PROGRAM = '''import sys
from pathlib import Path
from torch.utils.cpp_extension import load, load_inline

HEAD = "#include <torch/extension.h>"
SOURCE = HEAD + r"""
__global__ void sq(const float* x, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }
torch::Tensor square(torch::Tensor x) {
    auto y = torch::empty_like(x);
    sq<<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""

def build():
    with open("host.cpp") as file:
        host = file.read()
    load_inline("right", "torch::Tensor square(torch::Tensor x);", SOURCE, ["square"], extra_cuda_cflags=["-O3"])
    load_inline(name="host", cpp_sources=[host], functions="f")
    load_inline(name="kernels", cpp_sources="", cuda_sources="""
__global__ void k(float* x) {
    x[0] = nothing;
}
""", functions=["k"])
    load_inline(name="wrong", functions=["g"], cpp_sources=f"""{HEAD}
torch::Tensor g(torch::Tensor x) {{
    return missing(x);
}}
""")
    load_inline(name="unknown", cpp_sources=open(sys.argv[1]).read(), functions=["g"])
    load(name="files", sources=[str(Path(__file__).parent / "csrc" / "scale.cpp"), "csrc/scale_kernel.cu"],
         extra_include_paths=["csrc/include"], extra_cflags=["-DFACTOR=1"], extra_cuda_cflags=["-DFACTOR=1", "-DPLUS=1"])
'''


def test_check(project: Path) -> None:
    (project / "program.py").write_text(PROGRAM)
    (project / "host.cpp").write_text("int f() { return 1; }\n")
    (project / "other.cu").write_text("__global__ void other(float* x) { x[0] = 1; }\n")
    (project / "nothing.py").write_text("x = 1\n")
    ran = run(project, "-m", "kops.extension", "program.py", "setup.py", "csrc/scale_kernel.cu", "other.cu", "nothing.py", "not_there.cu")
    assert ran.returncode == 1, ran.stderr
    lines = ran.stdout.splitlines()
    expected = [
        "program.py:18: runs: right: functions square; kernels sq", "program.py:19: runs: host: functions f",
        "program.py:22: does not run: kernels.cu does not compile: program.py:22:",
        "program.py:25: does not run: wrong: host code does not",
        "program.py:30: does not run: `sys.argv[1]` is known", "program.py:31: runs: files: functions scale; kernels scale_kernel",
        "setup.py:7: runs: scaled._C: functions scale; kernels scale_kernel",
        "csrc/scale_kernel.cu:2: does not run: scale_kernel.cu does not compile: csrc/scale_kernel.cu:2:",
        "other.cu:1: runs: other: kernels other", "nothing.py:1: does not run: there is no call",
        "not_there.cu:1: does not run: ",
    ]  # fmt: skip
    assert len(lines) == len(expected), ran.stdout
    for line, start in zip(lines, expected):
        assert line.startswith(start), ran.stdout
