"""kops in PyTorch: `torch.ops.kops`, and kernels of your own as ops.

    import kops.torch

    c = torch.ops.kops.gemm(a, b, trans_b=True)      # in torch.compile, under autograd, autocast and vmap
    scale = kops.torch.custom_op(kern)               # a kernel of yours, too
    add = kops.torch.compile_kernel(source, "add")   # called as one of torch.cuda._compile_kernel

Importing this module registers an op for each of the daemon's, made from the same declarations as the methods of a client:
`torch.ops.kops.add(a, b)`, `.square(a)`, `.gemm(a, b, c=None, *, trans_a, trans_b, alpha, beta, precision, out_dtype)`,
`.linear(a, b, bias, *, trans_a, trans_b, alpha, activation, precision, out_dtype)`,
`.scaled_gemm(a, b, scale_a, scale_b, *, trans_a, trans_b, precision, out_dtype)`. They take torch tensors of one dtype, float32,
float64, float16 or bfloat16, those of single elements also integers, on CUDA or on the CPU, with the shapes of
`help(kops.Client.gemm)`, and return a new contiguous tensor on the device of the first. Where `beta` is not 0, `c` is what it scales: of
the result's shape, or broadcast to it. `torch.ops.kops.add.out(a, b, out=y)` and the like write to `out` and return nothing.

- On CUDA tensors a call is ordered on torch's current stream and returns at once; on CPU tensors it waits.
- The ops go through the process's own client, `kops.default_client()`, which connects at the first call, or through the one that
  `kops.torch.use` names. After a fork the child's calls have a connection of their own.
- `scaled_gemm` takes `a` and `b` of float8_e4m3fn or float8_e5m2, each as it likes, with scales of float32, and gives bfloat16 or
  `out_dtype`.
- Gradients: of all tensor inputs, any number of times, but for `scaled_gemm`, which has none and says so. Forward-mode derivatives and
  gradients through `.out` raise an error.
- torch.compile keeps the ops as they are, without graph breaks.
- CUDA graphs, torch's and those of torch.compile, hold the ops: on a captured stream they run in this process's context, by the daemon's
  kernels, and the graph then needs no daemon. gemm is there torch's own matmul, with torch's settings, where the daemon would have used
  cuBLASLt.
- Autocast: gemm computes in autocast's dtype, as torch.mm does; add converts its inputs to the widest of their dtypes; scaled_gemm's
  stay as they are.
- vmap: all ops, each in one call. `.out` raises an error.
- Errors are those of a client's methods, `kops.KopsError`, in torch.compile inside torch's own; those of ordered calls appear
  at a later call or at `kops.torch.client().synchronize()`.

The functions here and the ops may be called from any thread. Needs torch 2.5 or later: `pip install torch`."""

from typing import Any as _Any

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError(f"kops.torch needs PyTorch, which cannot be imported ({_error}): pip install torch") from _error
if not hasattr(_torch.library, "register_vmap"):
    raise ImportError(f"kops.torch needs torch 2.5 or later, and this is {_torch.__version__}; the methods of a client do not")

from .._base.declarations import OPS as _OPS  # noqa: E402
from . import _ops as _made  # noqa: E402
from ._kernels import (
    compile_kernel,  # noqa: E402
    custom_op,  # noqa: E402
)
from ._where import client, use  # noqa: E402

__all__ = ["client", "compile_kernel", "custom_op", "use"]

_library: _Any = _torch.library.Library(_made.NAMESPACE, "DEF")
for _name in _OPS:
    _made.define(_library, _name)
