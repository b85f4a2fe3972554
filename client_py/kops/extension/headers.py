"""Headers that only lead to another one: the names by which torch's and CUDA's headers are included."""

from __future__ import annotations

from pathlib import Path

INCLUDE = Path(__file__).resolve().parent / "include"

_TORCH = """torch/extension.h torch/torch.h torch/all.h torch/types.h torch/script.h torch/python.h torch/library.h ATen/ATen.h
ATen/core/Tensor.h ATen/Dispatch.h ATen/Functions.h ATen/AccumulateType.h ATen/TensorUtils.h ATen/cuda/CUDAContext.h
ATen/cuda/Exceptions.h c10/core/ScalarType.h c10/cuda/CUDAException.h c10/cuda/CUDAGuard.h c10/cuda/CUDAStream.h c10/macros/Macros.h
c10/util/Half.h c10/util/BFloat16.h c10/util/Optional.h c10/util/Exception.h pybind11/pybind11.h pybind11/stl.h"""
_CUDA = """cuda.h cuda_runtime.h cuda_runtime_api.h cuda_fp16.h cuda_bf16.h cuda_fp8.h device_launch_parameters.h driver_types.h
vector_types.h math_constants.h cooperative_groups.h curand_kernel.h mma.h cuda_pipeline.h cub/cub.cuh"""


def generated() -> dict[str, str]:
    """The text of each header by its path."""
    made = {path: "#include <kops/extension.h>\n" for path in _TORCH.split()}
    return made | {path: "#include <kops/cuda.h>\n" for path in _CUDA.split()}


def write(folder: Path) -> None:
    """Writes the headers into a folder, which a compiler needs before INCLUDE in its search path."""
    for path, text in generated().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
