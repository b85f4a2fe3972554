"""NumPy for what needs it, with an error that says what to do. torch tensors go without."""

from __future__ import annotations

try:
    import numpy as numpy
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    text = "NumPy is not installed, which kops needs for arrays, lists and numbers (not for torch tensors): pip install numpy"
    raise ModuleNotFoundError(text, name="numpy") from None
