"""Helpers around the stand-in CUDA driver: put `tests/` on the path and import `standin_cuda`."""

from .control import Control, Fault, Gate, Row
from .device import CudaError, DeviceArray, Driver, empty
from .dlpack import DLPackArray

__all__ = ["Control", "CudaError", "DLPackArray", "DeviceArray", "Driver", "Fault", "Gate", "Row", "empty"]
