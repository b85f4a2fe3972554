"""The headers that host code of extensions is compiled against, by each C++ compiler that is here."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kops.extension import headers

SOURCES = Path(__file__).parent / "extension"
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]

pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C++ compiler")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("include")
    headers.write(folder)
    return folder


def compiled(compiler, generated, source, *flags):
    command = [compiler, "-std=c++17", "-O0", "-I", generated, "-I", headers.INCLUDE, *flags, SOURCES / source]
    return subprocess.run(command, capture_output=True, text=True)


def named(errors, pattern, compiler):
    return any(re.search(pattern, error) or (compiler == "clang++" and "argument" in error) for error in errors)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_accepts_what_extensions_write(compiler, generated):
    result = compiled(compiler, generated, "accepted.cpp", "-fsyntax-only", "-Wno-narrowing")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("compiler", COMPILERS)
def test_names_what_it_refuses_with_its_line(compiler, generated):
    limit = "-fmax-errors=0" if compiler == "g++" else "-ferror-limit=0"
    result = compiled(compiler, generated, "refused.cpp", "-fsyntax-only", limit)
    errors = {}
    for line, text in re.findall(r"refused\.cpp:(\d+):\d+: (.*(?:error|note|required).*)", result.stderr):
        errors.setdefault(int(line), []).append(text)
    lines = (SOURCES / "refused.cpp").read_text().splitlines()
    expected = {i: line.split("// error: ")[1] for i, line in enumerate(lines, 1) if "// error: " in line}
    # clang++ leaves the name to the line that it shows, where the number of arguments is wrong.
    missing = [lines[i - 1] for i, text in expected.items() if not named(errors.get(i, []), text, compiler)]
    assert expected and not missing, result.stderr


@pytest.mark.parametrize("compiler", COMPILERS)
def test_hands_over_what_the_runtime_needs(compiler, generated, tmp_path):
    result = compiled(compiler, generated, "behaviour.cpp", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "behaviour")
    assert result.returncode == 0, result.stderr
    ran = subprocess.run([tmp_path / "behaviour"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("unsupported", ['py::class_<Opaque>(m, "Opaque")', 'm.def("f", [](Opaque) {})'])
def test_refuses_to_bind_classes(compiler, generated, tmp_path, unsupported):
    source = tmp_path / "bound.cpp"
    source.write_text(
        f"#include <torch/extension.h>\nstruct Opaque {{ int x; }};\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ {unsupported}; }}\n"
    )
    result = compiled(compiler, generated, source, "-fsyntax-only")
    assert result.returncode != 0
    assert "kops: py::class_ is not supported" in result.stderr or "kops: a bound function has a parameter" in result.stderr
    assert "bound.cpp:3" in result.stderr


def test_reads_every_declaration():
    read = headers.ops()
    assert len(read) > 400
    assert headers.op("fmIo relu(Tensor self, *, int[2] x=[0,1], str s='a') -> (Tensor, Tensor)") == headers.Op(
        "fmIo",
        "relu",
        [("const Tensor &self", "self"), ("IntArrayRef x = {0,1}", "x"), ('std::string_view s = "a"', "s")],
        ["x", "s"],
        "std::tuple<Tensor, Tensor>",
    )
    with pytest.raises(ValueError, match="cannot read 'relu"):
        headers.op("relu(Tensor self)")


def test_forwarding_headers_name_headers_that_exist():
    for path, text in headers.generated().items():
        for target in re.findall(r"#include <(kops/.*)>", text):
            assert (headers.INCLUDE / target).is_file() or target in headers.generated(), path
