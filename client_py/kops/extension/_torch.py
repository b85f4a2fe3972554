"""torch's functions that host code calls, by torch itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .. import Unsupported
from ._abi import Device, Dtype, Format, Options, Slice

# Functions and methods that extensions may call; in-place forms, NAME_, belong to them. Nothing else of torch is reached by a name.
ALLOWED = frozenset(
    """
    abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d add addbmm addcdiv addcmul addmm addmv addr alias all allclose amax amin aminmax angle any arange argmax argmin
    argsort as_strided asin asinh atan atan2 atanh avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bernoulli bernoulli_
    binary_cross_entropy binary_cross_entropy_with_logits bincount bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to
    bucketize cat cdist ceil celu chain_matmul cholesky chunk clamp clamp_max clamp_min clip clone col2im complex concat conj
    constant_pad_nd contiguous conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution copy_ copysign cos
    cosh cosine_similarity count_nonzero cpu cross cross_entropy_loss cuda cummax cummin cumprod cumsum deg2rad detach diag diag_embed
    diagonal diff digamma dist div divide dot dropout einsum elu embedding empty empty_like empty_strided eq equal erf erfc erfinv exp
    exp2 exp_ expand expand_as expm1 exponential_ eye fill_ flatten flip floor floor_divide fmax fmin fmod frac full full_like gather ge
    gelu ger glu grad group_norm gt hamming_window hann_window hardshrink hardsigmoid hardswish hardtanh heaviside
    hinge_embedding_loss histc huber_loss hypot im2col imag index index_add index_add_ index_copy index_copy_ index_fill
    index_put index_put_ index_select instance_norm interpolate inverse is_nonzero isclose isfinite isinf isnan item kl_div kron kthvalue
    l1_loss layer_norm le leaky_relu lerp lgamma linear linspace log log10 log1p log2 log_normal_ log_sigmoid log_softmax logaddexp
    logical_and logical_not logical_or logical_xor logit logsumexp lt lu masked_fill masked_scatter masked_select matmul matrix_exp max
    max_pool1d max_pool2d max_pool3d maximum mean median meshgrid min minimum mish mm mode moveaxis movedim mse_loss mul multinomial
    multiply mv nan_to_num narrow native_batch_norm native_layer_norm ne neg negative new_empty new_empty_strided new_full new_ones
    new_tensor new_zeros nll_loss nonzero norm normal normal_ normalize one_hot ones ones_like outer pad permute pin_memory
    pixel_shuffle pixel_unshuffle poisson polar pow prelu prod quantile rad2deg rand rand_like randint randint_like randn randn_like
    random_ randperm ravel real reciprocal record_stream relu relu6 remainder repeat repeat_interleave requires_grad_ reshape reshape_as
    resize_ rms_norm roll rot90 round rrelu rsqrt rsub scalar_tensor scaled_dot_product_attention scatter scatter_add scatter_reduce
    searchsorted select selu set_ sigmoid sign signbit silu sin sinc sinh slice smooth_l1_loss softmax softplus softshrink softsign sort
    split split_with_sizes sqrt square squeeze stack std std_mean sub subtract sum svd swapaxes swapdims t take take_along_dim tan tanh
    tensor tensor_split tensordot threshold tile to topk trace transpose tril tril_indices triplet_margin_loss triu triu_indices
    true_divide trunc type_as unbind unflatten unfold uniform_ unique unsqueeze upsample_nearest2d vander var var_mean vdot view view_as
    view_as_complex view_as_real vstack where xlogy zero_ zeros zeros_like
    """.split()
)
_DTYPES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8 quint8 qint32 bfloat16 "
    "quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64"
).split()
_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_FUNCTIONAL = ("cross_entropy_loss", "cross_entropy")  # the C++ name and Python's


def _torch() -> Any:
    return sys.modules["torch"]


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def on_cpu(value: Any) -> bool:
    return bool(value.device.type == "cpu")


is_on_cpu = on_cpu


def on_gpu(values: Sequence[Any]) -> bool:
    """Whether a call with these arguments is one for a GPU."""
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else (value,)) if is_tensor(one)]
    return any(one.is_cuda for one in flat) or (not flat and bool(_torch().cuda.is_available()))


def of_buffer(memory: Any) -> Any:
    """Memory of C++ as a tensor of bytes."""
    return _torch().frombuffer(memory, dtype=_torch().uint8)


def dtype_number(value: Any) -> int:
    return _DTYPES.index(str(value.dtype).rpartition(".")[2])


def dtype_of(value: Any) -> Dtype | Device | None:
    """A dtype or device as an argument of a call; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.dtype):
        return Dtype(_DTYPES.index(str(value).rpartition(".")[2]))
    if isinstance(value, torch.device):
        return Device(0 if value.type == "cpu" else 1, -1 if value.index is None else value.index)
    return None


def described(value: Any) -> tuple[int, int, int, Sequence[int], Sequence[int], bool]:
    """Dtype, index of the device, address, sizes, strides in elements, whether it requires a gradient."""
    if value.layout is not _torch().strided:
        raise Unsupported("a sparse tensor: pass a dense one")
    return dtype_number(value), value.device.index or 0, value.data_ptr(), value.shape, value.stride(), value.requires_grad


def storage(value: Any) -> tuple[int, int]:
    """Address and bytes of the memory that a tensor is a part of."""
    found = value.untyped_storage()
    return found.data_ptr(), found.nbytes()


def bytes_of(value: Any, start: int, size: int) -> Any:
    """Bytes of a tensor's storage, as a tensor in the same memory."""
    torch = _torch()
    made = torch.empty(0, dtype=torch.uint8, device=value.device)
    return made.set_(value.untyped_storage(), start, (size,), (1,))


def viewed(data: Any, dtype: str) -> Any:
    """Bytes as elements of a dtype; as they are where that is not possible."""
    wanted = getattr(_torch(), dtype)
    size = wanted.itemsize
    if size == 1 or data.storage_offset() % size:
        return data.view(wanted) if size == 1 else data
    return data[: len(data) // size * size].view(wanted)


def new_bytes(size: int) -> Any:
    torch = _torch()
    return torch.zeros(size, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    torch = _torch()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def stream() -> int:
    torch = _torch()
    return int(torch.cuda.current_stream().cuda_stream) if torch.cuda.is_available() and torch.cuda.is_initialized() else 0


# ---- functions ----


def _device(device: Device | None) -> Any:
    if device is None:
        return None
    torch = _torch()
    if device[0] != 1 or not torch.cuda.is_available():  # where there is no GPU, its tensors are in the memory of the CPU
        return torch.device({13: "meta"}.get(device[0], "cpu"))
    return torch.device("cuda", device[1] if device[1] >= 0 else torch.cuda.current_device())


def _converted(value: Any) -> Any:
    torch = _torch()
    if isinstance(value, Dtype):
        return getattr(torch, _DTYPES[value])
    if isinstance(value, Format):
        return getattr(torch, _FORMATS[value])
    if isinstance(value, Device):
        return _device(value)
    return tuple(map(_converted, value)) if isinstance(value, (list, tuple)) and not isinstance(value, (Slice, Options)) else value


def _of_options(options: Options) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if options.dtype is not None:
        made["dtype"] = _converted(Dtype(options.dtype))
    if options.device is not None:
        made["device"] = _device(Device(*options.device))
    if options.requires_grad:
        made["requires_grad"] = True
    if options.format is not None:
        made["memory_format"] = _converted(Format(options.format))
    return made


def _position(item: Any) -> Any:
    return slice(*item) if isinstance(item, Slice) else Ellipsis if item == "..." else item


def _items(arguments: list[Any]) -> Any:
    listed = len(arguments) == 1 and isinstance(arguments[0], (list, tuple)) and not isinstance(arguments[0], Slice)
    return tuple(_position(item) for item in (arguments[0] if listed else arguments))


def _function(name: str, first: Any) -> Any:
    torch = _torch()
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    if name not in ALLOWED and plain not in ALLOWED:
        raise Unsupported(f"{name}() of torch is not among the functions that an extension may call")
    method = getattr(torch.Tensor, name, None) if is_tensor(first) else None
    if method is not None:
        return method
    for place in (torch, torch.nn.functional, torch._C._nn):
        found = getattr(place, _FUNCTIONAL[1] if name == _FUNCTIONAL[0] else name, None)
        if callable(found):
            return found
    raise Unsupported(f"this torch has no function {name}()")


def call(name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Calls a function of torch's by its name. Raises Unsupported for one that is not among those that are allowed."""
    first = arguments[0] if arguments else None
    if name == "index":
        return first[_items(arguments[1:])]
    if name == "index_put_" and not isinstance(arguments[1], (list, tuple)):
        first[_items(arguments[2:])] = arguments[1]
        return first
    if name == "slice":
        dim, start, stop, step = (*arguments[1:], *(0, None, None, 1)[len(arguments) - 1 :])
        return first[(slice(None),) * (dim % first.dim()) + (slice(start, stop, step),)]
    if name in ("radd", "rmul", "rdiv"):
        return _reflected(name, first, arguments[1])
    options = [value for value in (*arguments, *named.values()) if isinstance(value, Options)]
    keywords: dict[str, Any] = {}
    for one in options:
        keywords |= _of_options(one)
    keywords |= {key: _converted(value) for key, value in named.items() if value is not None and not isinstance(value, Options)}
    given = [_converted(value) for value in arguments if not isinstance(value, Options)]
    while given and given[-1] is None:
        given.pop()
    return _function(name, first)(*given, **keywords)


def _reflected(name: str, tensor: Any, number: Any) -> Any:
    return number + tensor if name == "radd" else number * tensor if name == "rmul" else number / tensor
