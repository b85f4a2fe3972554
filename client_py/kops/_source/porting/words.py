"""What C++ and PyTorch's C++ call things, and what Python calls them. Values are told apart by their kind: int, float, bool, text,
tensor (a pointer to one as well), dim3, shape, list, options, dtype, device, none, void."""

from __future__ import annotations

from typing import NamedTuple

from ..tokens import DIRECTIVE, NAME, PUNCTUATION, Token


class NotTranslated(Exception):
    """What of the C++ has no translation: why, and on which line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line, self.why = line, why


# Exceptions of reading unexpected C++.
UNREADABLE = (NotTranslated, IndexError, ValueError, RecursionError)


def reason(error: Exception, line: int) -> tuple[int, str]:
    """The line and the reason of one of these."""
    return (error.line, error.why) if isinstance(error, NotTranslated) else (line, "it is not understood")


class Value(NamedTuple):
    """An expression in Python."""

    text: str
    kind: str
    level: int = 100  # binding strength of the outermost operator

    def at(self, level: int) -> str:
        """Its text as an operand of an operator that binds so strongly."""
        return self.text if self.level >= level else f"({self.text})"


INTEGERS = (
    "int", "unsigned", "signed", "long", "short", "char", "size_t", "ssize_t", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t",
    "uint16_t", "uint32_t", "uint64_t", "uint", "intptr_t", "ptrdiff_t",
)  # fmt: skip
FLOATS = ("float", "double", "half", "__half", "__nv_bfloat16", "nv_bfloat16", "Half", "BFloat16")
KINDS = {
    **dict.fromkeys(INTEGERS, "int"), **dict.fromkeys(FLOATS, "float"), "bool": "bool", "Tensor": "tensor", "dim3": "dim3",
    "TensorOptions": "options", "ScalarType": "dtype", "Dtype": "dtype", "Device": "device", "IntArrayRef": "shape", "string": "text",
    "void": "void", "auto": "auto", "cudaError_t": "status", "cudaStream_t": "status", "CUDAStream": "status", "CUDAGuard": "status",
    "OptionalCUDAGuard": "status", "DeviceGuard": "status", "vector": "list", "tuple": "list", "optional": "tensor",
}  # fmt: skip
SIZES = {"char": 1, "bool": 1, "int8_t": 1, "uint8_t": 1, "short": 2, "half": 2, "__half": 2, "__nv_bfloat16": 2, "int64_t": 8,
         "uint64_t": 8, "double": 8, "long": 8, "size_t": 8, "float4": 16, "int4": 16, "float2": 8, "int2": 8}  # fmt: skip
NAMESPACES = ("at", "torch", "c10", "std", "cuda")
PLAIN_QUALIFIERS = ("const", "static", "constexpr", "inline", "volatile", "register", "struct", "__restrict__", "__restrict", "typename")

DTYPES = {
    "Float": "float32", "Float32": "float32", "Double": "float64", "Float64": "float64", "Half": "float16", "Float16": "float16",
    "BFloat16": "bfloat16", "Int": "int32", "Int32": "int32", "Long": "int64", "Int64": "int64", "Short": "int16", "Int16": "int16",
    "Char": "int8", "Int8": "int8", "Byte": "uint8", "UInt8": "uint8", "Bool": "bool",
}  # fmt: skip
C_TYPES = {
    "float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16", "int8": "signed char",
    "uint8": "unsigned char", "int16": "short", "int32": "int", "int64": "long long", "bool": "bool",
}  # fmt: skip
_FLOATING, _INTEGRAL = ("float32", "float64"), ("uint8", "int8", "int32", "int64", "int16")
DISPATCHES = {"FLOATING_TYPES": _FLOATING, "INTEGRAL_TYPES": _INTEGRAL, "ALL_TYPES": (*_INTEGRAL, *_FLOATING)}

# Methods of a tensor in C++ that Python has under the same name, and what they return.
METHODS = dict.fromkeys((
    "contiguous", "clone", "detach", "zero_", "fill_", "view", "reshape", "flatten", "transpose", "t", "permute", "squeeze", "unsqueeze",
    "expand", "narrow", "select", "copy_", "add_", "sub_", "mul_", "div_", "sum", "mean", "max", "min", "abs", "sqrt", "exp", "cpu", "cuda",
    "to", "float", "half", "index_select",
), "tensor") | {
    "is_contiguous": "bool", "is_floating_point": "bool", "numel": "int", "dim": "int", "ndimension": "int", "stride": "int",
    "element_size": "int", "storage_offset": "int", "get_device": "int", "defined": "bool",
}  # fmt: skip
# Functions of torch that Python has under the same name.
FUNCTIONS = (
    "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "arange", "rand",
    "randn", "cat", "stack", "sum", "matmul", "mm", "add", "mul", "sqrt", "exp", "max", "min", "allclose", "equal",
)  # fmt: skip
MATH = {
    "ceil": "ceil", "ceilf": "ceil", "floor": "floor", "floorf": "floor", "sqrt": "sqrt", "sqrtf": "sqrt", "log2": "log2", "log2f": "log2",
    "log": "log", "logf": "log", "exp": "exp", "expf": "exp", "pow": "pow", "powf": "pow",
}  # fmt: skip
# Calls that the port leaves out, since the daemon checks and orders launches.
NEEDLESS = (
    "C10_CUDA_KERNEL_LAUNCH_CHECK", "C10_CUDA_CHECK", "AT_CUDA_CHECK", "CUDA_CHECK", "CUDA_KERNEL_LAUNCH_CHECK", "cudaDeviceSynchronize",
    "cudaStreamSynchronize", "cudaGetLastError", "cudaPeekAtLastError", "cudaFuncSetAttribute", "cudaSetDevice", "getCurrentCUDAStream",
    "getDefaultCUDAStream", "synchronize", "device_of", "cudaGetErrorString", "current_device",
)  # fmt: skip
CHECKS = ("TORCH_CHECK", "TORCH_INTERNAL_ASSERT", "AT_ASSERTM", "AT_ASSERT", "AT_CHECK", "assert", "TORCH_CHECK_EQ")

_OPERATORS = ("&&", "||", "==", "!=", "<=", ">=", "+=", "-=", "*=", "/=", "%=", "++", "--", "<<", "|=", "&=")


def joined(found: list[Token]) -> list[Token]:
    """Tokens with C++'s operators of two characters as one, and without directives. `>>` stays two, as a template has it."""
    result: list[Token] = []
    for token in found:
        if token.kind == DIRECTIVE:
            continue
        last = result[-1] if result else None
        if (
            last is not None and last.kind == token.kind == PUNCTUATION and last.text + token.text in _OPERATORS
            and last.start + len(last.text) == token.start
        ):  # fmt: skip
            result[-1] = Token(PUNCTUATION, last.text + token.text, last.start, last.line)
        else:
            result.append(token)
    return result


_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")


def closing(found: list[Token], at: int) -> int:
    """The place of the bracket that closes the one at `at`. Raises NotTranslated where none does."""
    depth = 0
    for i in range(at, len(found)):
        depth += (found[i].text in _OPENING) - (found[i].text in _CLOSING)
        if not depth:
            return i
    raise NotTranslated(found[at].line, "brackets that do not match")


def closing_angle(found: list[Token], at: int) -> int:
    """The same of a template's `<`; -1 where the words between are no types and numbers."""
    depth = 0
    for i in range(at, len(found)):
        text = found[i].text
        depth += (text == "<") - (text == ">")
        if not depth:
            return i
        if found[i].kind == PUNCTUATION and text not in ("<", ">", "::", "*", "&", ",", "+", "-", "/", "(", ")"):
            return -1
    return -1


def split_at(found: list[Token], mark: str) -> list[list[Token]]:
    """The tokens between the marks that are in no brackets, nor a template's angles; nothing for no tokens."""
    if not found:
        return []
    result: list[list[Token]] = [[]]
    depth = i = 0
    while i < len(found):
        token = found[i]
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        angles = not depth and token.kind == NAME and i + 1 < len(found) and found[i + 1].text == "<"
        if not depth and token.text == mark:
            result.append([])
        elif angles and (end := closing_angle(found, i + 1)) > 0:
            result[-1] += found[i : end + 1]
            i = end
        else:
            result[-1].append(token)
        i += 1
    return result


def _continues(kind: str, more: str) -> bool:
    """Whether a word belongs to the type that has begun: `unsigned int`, `long double`."""
    return kind == "int" and more in ("int", "float")


def read_type(found: list[Token], at: int, more: dict[str, str]) -> tuple[str, int, bool] | None:
    """The type that begins at `at`: its kind, the place behind it, and whether it is a pointer; None where none does. `more` has the kinds
    of further names."""
    i, kind, pointer = at, "", False
    while i < len(found):
        text = found[i].text
        if text in PLAIN_QUALIFIERS:
            i += 1
        elif text in ("*", "&") and kind:
            pointer, i = pointer or text == "*", i + 1
        elif found[i].kind == NAME and i + 1 < len(found) and found[i + 1].text == "::" and text in NAMESPACES:
            i += 2
        elif found[i].kind == NAME and (found_kind := KINDS.get(text) or more.get(text)) and (not kind or _continues(kind, found_kind)):
            kind, i = found_kind, i + 1
            if i < len(found) and found[i].text == "<":
                end = closing_angle(found, i)
                if end < 0:
                    return None
                i = end + 1
        else:
            break
    return (kind, i, pointer) if kind else None
