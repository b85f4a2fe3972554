"""Kernels and modules of the user's own."""
