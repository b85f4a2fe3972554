"""torch tensors: on CUDA by the allocation that they lie in, on the CPU in shared memory.

Autograd does not see the daemon's work: inputs are taken as data, outputs are plain tensors. The ops of `kops.torch` are for it.
"""

from __future__ import annotations

import ctypes
import math
import sys
from functools import partial
from typing import Any

from .._base.compiled import configure
from .._base.dtypes import NAMES
from .._base.errors import BadArgument, Capturing, Overlap, ShapeMismatch, Unsupported
from .._base.texts import warn
from .._memory.exports import allocations
from .._memory.pool import pool
from .operands import Adapter, Layout, NumbersOnDevices, Operand, Operands, copied_strides, span, unknown_dtype

# torch copies more than about 64 KiB with all of its threads. They then poll for milliseconds for more work, and take
# processors from the daemon (gemm of 512 x 512 in bf16 on two processors: 0.77 ms a call, 0.48 without them). Above
# ONE_THREAD_BYTES the copy itself takes longer than that.
ONE_THREAD_BYTES = 2 << 20


def current_stream(index: int) -> int:
    """The handle of torch's current stream on a device."""
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(index) if raw is not None else torch.cuda.current_stream(index).cuda_stream)


def _copy(into: Any, source: Any) -> None:
    """Between CPU tensors of one shape and dtype."""
    n_bytes, address = source.numel() * source.element_size(), source.data_ptr()
    # Tensors of zeros that torch makes for derivatives have no memory.
    if address and n_bytes <= ONE_THREAD_BYTES and into.is_contiguous() and source.is_contiguous():
        ctypes.memmove(into.data_ptr(), address, n_bytes)
    else:
        into.copy_(source)


def _copy_back(into: Any, source: Any, torch: Any) -> None:
    """As `_copy`; autograd finds out that what it saved has changed."""
    has_changed = getattr(torch.autograd.graph, "increment_version", None)
    if has_changed is None or into.is_inference():
        into.copy_(source)
        return
    _copy(into, source)
    has_changed(into)


class TorchAdapter(Adapter):
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        configure(torch, current_stream)
        self._dtypes = {short: getattr(torch, name) for short, name in NAMES.items() if hasattr(torch, name)}
        self._names = {dtype: short for short, dtype in self._dtypes.items()}
        self._numbers = NumbersOnDevices(self._filled)
        self._fillers: dict[int, Any] = {}  # a stream for each device

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        dtype = self._names.get(value.dtype)
        if dtype is None:
            raise unknown_dtype(value.dtype)
        if value.requires_grad and self._torch.is_grad_enabled():
            warn(
                "autograd does not see what kops computes: pass x.detach(), or call inside torch.no_grad(); or import kops.torch, whose "
                "ops (torch.ops.kops, kops.torch.custom_op) have gradients",
                UserWarning,
            )
        if value.layout is not self._torch.strided:
            raise BadArgument(f"a tensor of layout {value.layout}: only dense tensors (torch.strided) can be used")
        if value.is_neg():
            if output:
                raise BadArgument("out is a negated view: pass a tensor of its own")
            value = value.resolve_neg()
        device = value.device
        if device.type == "cuda":
            return self._on_cuda(value, operands, dtype)
        if device.type == "cpu":
            return self._on_host(value, operands, dtype, output, reads)
        raise Unsupported(f"a tensor on {device}: only CUDA and CPU tensors can be used")

    def _on_cuda(self, value: Any, operands: Operands, dtype: str) -> Operand:
        operands.keep.append(value)
        self._wait_for(value.get_device(), operands)
        shape = value.shape
        if 0 in shape:
            return Operand(value, None, 0, shape, None, dtype, self)
        pointer = value.data_ptr()
        allocation = allocations.find(pointer)
        strides = None if value.is_contiguous() else value.stride()
        if allocation.chunks is not None:
            allocation = allocations.cover(pointer, span(shape, strides, dtype))
        return Operand(value, allocation, pointer - allocation.base, shape, strides, dtype, self)

    def number_operand(self, value: Any, like: Operand, operands: Operands) -> Operand:
        device = like.value.device
        if device.type != "cuda":
            return super().number_operand(value, like, operands)
        return self._on_cuda(self._numbers.of(device, like.dtype, value), operands, like.dtype)

    def _filled(self, device: Any, dtype: str, number: Any) -> Any:
        """A new tensor of one element. Its own stream has nothing else to do, so waiting for it takes no longer than the fill."""
        index = device.index
        self._refuse_capture(index)
        filler = self._fillers.get(index)
        if filler is None:
            filler = self._fillers[index] = self._torch.cuda.Stream(device)
        with self._torch.cuda.stream(filler):
            made = self._torch.full((), number, dtype=self._dtypes[dtype], device=device)
        filler.synchronize()
        return made

    def _wait_for(self, index: int, operands: Operands) -> None:
        key = ("torch", index)
        if key not in operands.waits:
            operands.waits[key] = partial(self._synchronize, index)

    def _synchronize(self, index: int) -> None:
        self._refuse_capture(index)
        self._torch.cuda.current_stream(index).synchronize()

    def _refuse_capture(self, index: int) -> None:
        if allocations.driver.capturing(current_stream(index)):  # to wait would spoil the graph
            raise Capturing(
                "the current CUDA stream is being captured, and a call cannot be part of a graph: make it outside the capture, or "
                "record a program with k.program()"
            )

    def _on_host(self, value: Any, operands: Operands, dtype: str, output: bool, reads: bool) -> Operand:
        shape = tuple(value.shape)
        if 0 in shape:
            return Operand(value, None, 0, shape, None, dtype, self)
        pointer = value.data_ptr()
        segment = pool.find(pointer)
        if segment is not None:
            operands.keep.append(value)
            strides = None if value.is_contiguous() else tuple(value.stride())
            return Operand(value, segment, pointer - segment.address, shape, strides, dtype, self)
        return self._stage(value, operands, dtype, output, reads)

    def filling(self, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
        data = value.detach()
        try:
            return data if tuple(data.shape) == shape else data.expand(shape)
        except RuntimeError:
            raise ShapeMismatch(f"a tensor of shape {tuple(data.shape)} does not broadcast to the array's, {shape}") from None

    def layout(self, value: Any, staged: bool = True) -> Layout:
        dtype = self._names.get(value.dtype)
        if dtype is None:
            raise unknown_dtype(value.dtype)
        value = value.resolve_neg() if value.is_neg() else value  # as operand() does, which may change the layout
        shape, address, device = tuple(value.shape), value.data_ptr(), -1 if staged else value.get_device()
        if 0 in shape or value.is_contiguous():
            return Layout(dtype, shape, None, address, device)
        strides: tuple[int, ...] | None = tuple(value.stride())
        if staged and value.device.type == "cpu" and pool.find(address) is None:
            strides = copied_strides(shape, [s == 0 and n > 1 for s, n in zip(value.stride(), shape, strict=True)])
        return Layout(dtype, shape, strides, address, device)

    def on_host(self, value: Any) -> Any:
        value = value.resolve_neg() if value.is_neg() else value
        return value if value.device.type == "cpu" else value.cpu().contiguous()

    def _stage(self, value: Any, operands: Operands, dtype: str, output: bool, reads: bool) -> Operand:
        shape = tuple(value.shape)
        data = value.detach()
        repeated = [s == 0 and n > 1 for s, n in zip(value.stride(), shape, strict=True)]
        if output and any(repeated):
            raise Overlap("out has elements that share memory (stride 0)")
        # A tensor that is given twice (both inputs, or in place) is one operand for the daemon, too.
        key = (value.data_ptr(), shape, tuple(value.stride()), dtype)
        found: Operand | None = operands.staged.get(key)
        if found is None:
            # Repeated elements are copied once and repeated by stride 0.
            distinct = data
            for i, r in enumerate(repeated):
                if r:
                    distinct = distinct.narrow(i, 0, 1)
            block, stage = self._shared(tuple(distinct.shape), dtype)
            if reads:
                _copy(stage, distinct)
            strides = None
            if any(repeated):
                strides = copied_strides(shape, repeated)
            found = Operand(stage, block.segment, block.offset, shape, strides, dtype, self)
            operands.staged[key] = found
            operands.keep.append(stage)
        if output:
            stage = found.value
            operands.copies.append(lambda: _copy_back(data, stage, self._torch))
        return Operand(value, found.source, found.offset, shape, found.strides, dtype, self)

    def _shared(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        """A block and a tensor in it, which is no view: autograd lets nobody write to views that an op made."""
        torch_dtype = self._dtypes[dtype]
        count = math.prod(shape)
        block = pool.take(count * torch_dtype.itemsize)
        return block, self._torch.frombuffer(block, dtype=torch_dtype, count=count).resize_(shape)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A CPU tensor in shared memory, its content whatever was there."""
        name = self._names.get(dtype)
        if name is None:
            raise unknown_dtype(dtype)
        if 0 in shape:
            return self._torch.empty(shape, dtype=dtype)
        return self._shared(shape, name)[1]

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        device = like.value.device
        if device.type == "cuda":
            return self._on_cuda(self._torch.empty(shape, dtype=self._dtypes[like.dtype], device=device), operands, like.dtype)
        if 0 in shape:
            return Operand(self._torch.empty(shape, dtype=self._dtypes[like.dtype]), None, 0, shape, None, like.dtype, self)
        block, made = self._shared(shape, like.dtype)
        operands.keep.append(made)
        return Operand(made, block.segment, block.offset, shape, None, like.dtype, self)
