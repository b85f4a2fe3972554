"""Helpers around the stand-in CUDA driver: put `tests/` on the path and import `standin_cuda`."""

from .control import Control, Fault, Gate, Row
from .device import CudaError, DeviceArray, Driver

__all__ = ["Control", "CudaError", "DeviceArray", "Driver", "Fault", "Gate", "Row"]
