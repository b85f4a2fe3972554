"""The five kernels."""

from __future__ import annotations

import add2
import custom
import gemm
import square_matrix
import vector_add

EXAMPLES = (square_matrix.EXAMPLE, add2.EXAMPLE, gemm.EXAMPLE, custom.EXAMPLE, vector_add.EXAMPLE)
