"""From a source of nvcc's kind, kernels with a function in C++ that launches them, to the kernels alone and that function in Python."""

from .answer import Port, port

__all__ = ["Port", "port"]
