"""The driver and cuBLASLt, called through ctypes: modules, encoded maps, launches, every algorithm of a product."""

import ctypes as c

driver = c.CDLL("libcuda.so.1")
BF16, F16, F32 = "bf16", "f16", "f32"
MAP_TYPE = {F16: 6, F32: 7, BF16: 9}  # CUtensorMapDataType
BLAS_TYPE = {F16: 2, F32: 0, BF16: 14}  # cudaDataType


def call(name, *args):
    status = getattr(driver, name)(*args)
    if status:
        text = c.c_char_p()
        driver.cuGetErrorName(status, c.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")


class Module:
    def __init__(self, image: bytes):
        self.handle = c.c_void_p()
        call("cuModuleLoadData", c.byref(self.handle), image)

    def kernel(self, name: str, shared: int = 0):
        function = c.c_void_p()
        call("cuModuleGetFunction", c.byref(function), self.handle, name.encode())
        if shared > 48 << 10:
            call("cuFuncSetAttribute", function, 8, shared)
        return function


def tensor_map(dtype, address, extents, strides, box, swizzle=3, promotion=2) -> bytes:
    """`extents`, `box`: innermost first; `strides` in bytes, of all dimensions but the innermost."""
    memory = c.create_string_buffer(192)
    at = (c.addressof(memory) + 63) // 64 * 64
    rank = len(extents)
    call("cuTensorMapEncodeTiled", c.c_void_p(at), MAP_TYPE[dtype], rank, c.c_void_p(address), (c.c_uint64 * rank)(*extents),
         (c.c_uint64 * (rank - 1))(*strides), (c.c_uint32 * rank)(*box), (c.c_uint32 * rank)(*[1] * rank), 0, swizzle, promotion, 0)
    return c.string_at(at, 128)


def launch(function, grid, block, shared, params: bytes, stream=0):
    memory = c.create_string_buffer(params, len(params))
    call("cuLaunchKernel", function, *grid, *block, shared, c.c_void_p(stream), (c.c_void_p * 1)(c.addressof(memory)), None)


class Product:
    """out = a · b by cuBLASLt, row-major (as the transposed product in its column-major terms). `a_lead`, `b_lead`: elements
    from row to row as the matrix lies in memory; an operand that lies across the usual order is `a_turned` (b_turned)."""

    def __init__(self, blas, dtype, m, n, k, a_turned, b_turned, a_lead, b_lead, out_lead, workspace, workspace_bytes):
        self.blas, self.workspace, self.workspace_bytes = blas, workspace, workspace_bytes
        self.handle, self.desc = c.c_void_p(), c.c_void_p()
        self.check(blas.cublasLtCreate(c.byref(self.handle)))
        self.check(blas.cublasLtMatmulDescCreate(c.byref(self.desc), 68, 0))
        for which, turned in ((3, b_turned), (4, a_turned)):
            value = c.c_int(1 if turned else 0)
            self.check(blas.cublasLtMatmulDescSetAttribute(self.desc, which, c.byref(value), c.c_size_t(4)))
        kind = BLAS_TYPE[dtype]
        self.a = self.layout(kind, *((k, n) if b_turned else (n, k)), b_lead)
        self.b = self.layout(kind, *((m, k) if a_turned else (k, m)), a_lead)
        self.out = self.layout(kind, n, m, out_lead)
        self.algorithms = self.heuristics(32)

    @staticmethod
    def check(status):
        if status:
            raise RuntimeError(f"cuBLASLt: {status}")

    def layout(self, kind, rows, columns, lead):
        made = c.c_void_p()
        self.check(self.blas.cublasLtMatrixLayoutCreate(c.byref(made), kind, c.c_uint64(rows), c.c_uint64(columns), c.c_int64(lead)))
        return made

    def heuristics(self, most):
        preference, found = c.c_void_p(), c.c_int()
        self.check(self.blas.cublasLtMatmulPreferenceCreate(c.byref(preference)))
        size = c.c_size_t(self.workspace_bytes)
        self.check(self.blas.cublasLtMatmulPreferenceSetAttribute(preference, 1, c.byref(size), c.c_size_t(8)))
        results = c.create_string_buffer(96 * most)
        self.check(self.blas.cublasLtMatmulAlgoGetHeuristic(self.handle, self.desc, self.a, self.b, self.out, self.out, preference, most,
                                                            results, c.byref(found)))
        return [results.raw[96 * i:96 * i + 64] for i in range(found.value)]

    def run(self, algorithm, a, b, out, stream=0):
        one, zero = c.c_float(1), c.c_float(0)
        status = self.blas.cublasLtMatmul(self.handle, self.desc, c.byref(one), c.c_void_p(b), self.a, c.c_void_p(a), self.b,
                                          c.byref(zero), c.c_void_p(out), self.out, c.c_void_p(out), self.out, algorithm,
                                          c.c_void_p(self.workspace), c.c_size_t(self.workspace_bytes), c.c_void_p(stream))
        self.check(status)


def find_blas():
    """The cuBLASLt that torch has loaded."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "libcublasLt.so" in line:
                return c.CDLL(line.split()[-1])
    return c.CDLL("libcublasLt.so.13")
