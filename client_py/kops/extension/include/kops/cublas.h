// cuBLAS: calls go to the real library.
#pragma once
#include <kops/context.h>

typedef struct cublasContext *cublasHandle_t;
typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
    CUBLAS_STATUS_LICENSE_ERROR = 16
} cublasStatus_t;
typedef enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1, CUBLAS_FILL_MODE_FULL = 2 } cublasFillMode_t;
typedef enum { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 } cublasDiagType_t;
typedef enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 } cublasSideMode_t;
typedef enum {
    CUBLAS_OP_N = 0,
    CUBLAS_OP_T = 1,
    CUBLAS_OP_C = 2,
    CUBLAS_OP_HERMITAN = 2,
    CUBLAS_OP_CONJG = 3
} cublasOperation_t;
typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;
typedef enum { CUBLAS_ATOMICS_NOT_ALLOWED = 0, CUBLAS_ATOMICS_ALLOWED = 1 } cublasAtomicsMode_t;
typedef enum {
    CUBLAS_GEMM_DEFAULT = -1,
    CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99,
    CUBLAS_GEMM_AUTOTUNE = 999
} cublasGemmAlgo_t;
typedef enum {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_TENSOR_OP_MATH = 1,
    CUBLAS_PEDANTIC_MATH = 2,
    CUBLAS_TF32_TENSOR_OP_MATH = 3,
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
} cublasMath_t;
typedef enum {
    CUBLAS_COMPUTE_16F = 64,
    CUBLAS_COMPUTE_16F_PEDANTIC = 65,
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_PEDANTIC = 69,
    CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_16BF = 75,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
    CUBLAS_COMPUTE_64F = 70,
    CUBLAS_COMPUTE_64F_PEDANTIC = 71,
    CUBLAS_COMPUTE_32I = 72,
    CUBLAS_COMPUTE_32I_PEDANTIC = 73
} cublasComputeType_t;

#define KOPS_FUNCTION(NAME, SYMBOL, ...) inline constexpr kops::LibraryFunction<__VA_ARGS__> NAME{"cublas", SYMBOL};
// A function for several types T, by the letters of its names.
#define KOPS_TYPED(LETTER, TYPE, NAME, VERSION)                                                                        \
    KOPS_FUNCTION(cublas##LETTER##NAME, "cublas" #LETTER #NAME VERSION, KopsBlas_##NAME<TYPE>)
#define KOPS_DECLARED(NAME, ...) template <class T> using KopsBlas_##NAME = cublasStatus_t(cublasHandle_t, __VA_ARGS__);
#define KOPS_REAL(NAME, VERSION, ...)                                                                                  \
    KOPS_DECLARED(NAME, __VA_ARGS__) KOPS_TYPED(S, float, NAME, VERSION) KOPS_TYPED(D, double, NAME, VERSION)
#define KOPS_COMPLEX(NAME, VERSION, ...)                                                                               \
    KOPS_DECLARED(NAME, __VA_ARGS__)                                                                                   \
    KOPS_TYPED(C, cuComplex, NAME, VERSION) KOPS_TYPED(Z, cuDoubleComplex, NAME, VERSION)
#define KOPS_ALL(NAME, VERSION, ...)                                                                                   \
    KOPS_REAL(NAME, VERSION, __VA_ARGS__)                                                                              \
    KOPS_TYPED(C, cuComplex, NAME, VERSION) KOPS_TYPED(Z, cuDoubleComplex, NAME, VERSION)
KOPS_FUNCTION(cublasCreate, "cublasCreate_v2", cublasStatus_t(cublasHandle_t *))
KOPS_FUNCTION(cublasDestroy, "cublasDestroy_v2", cublasStatus_t(cublasHandle_t))
KOPS_FUNCTION(cublasSetStream, "cublasSetStream_v2", cublasStatus_t(cublasHandle_t, cudaStream_t))
KOPS_FUNCTION(cublasGetStream, "cublasGetStream_v2", cublasStatus_t(cublasHandle_t, cudaStream_t *))
KOPS_FUNCTION(cublasSetWorkspace, "cublasSetWorkspace_v2", cublasStatus_t(cublasHandle_t, void *, size_t))
KOPS_FUNCTION(cublasSetPointerMode, "cublasSetPointerMode_v2", cublasStatus_t(cublasHandle_t, cublasPointerMode_t))
KOPS_FUNCTION(cublasGetPointerMode, "cublasGetPointerMode_v2", cublasStatus_t(cublasHandle_t, cublasPointerMode_t *))
KOPS_FUNCTION(cublasSetMathMode, "cublasSetMathMode", cublasStatus_t(cublasHandle_t, cublasMath_t))
KOPS_FUNCTION(cublasGetMathMode, "cublasGetMathMode", cublasStatus_t(cublasHandle_t, cublasMath_t *))
KOPS_FUNCTION(cublasSetAtomicsMode, "cublasSetAtomicsMode", cublasStatus_t(cublasHandle_t, cublasAtomicsMode_t))
KOPS_FUNCTION(cublasGetVersion, "cublasGetVersion_v2", cublasStatus_t(cublasHandle_t, int *))
KOPS_FUNCTION(cublasSetVector, "cublasSetVector", cublasStatus_t(int, int, const void *, int, void *, int))
KOPS_FUNCTION(cublasGetVector, "cublasGetVector", cublasStatus_t(int, int, const void *, int, void *, int))
KOPS_FUNCTION(cublasSetMatrix, "cublasSetMatrix", cublasStatus_t(int, int, int, const void *, int, void *, int))
KOPS_FUNCTION(cublasGetMatrix, "cublasGetMatrix", cublasStatus_t(int, int, int, const void *, int, void *, int))
KOPS_ALL(copy, "_v2", int, const T *, int, T *, int)
KOPS_ALL(swap, "_v2", int, T *, int, T *, int)
KOPS_ALL(gemv, "_v2", cublasOperation_t, int, int, const T *, const T *, int, const T *, int, const T *, T *, int)
KOPS_ALL(gemm, "_v2", cublasOperation_t, cublasOperation_t, int, int, int, const T *, const T *, int, const T *, int,
         const T *, T *, int)
KOPS_ALL(gemmStridedBatched, "", cublasOperation_t, cublasOperation_t, int, int, int, const T *, const T *, int,
         long long int, const T *, int, long long int, const T *, T *, int, long long int, int)
KOPS_ALL(gemmBatched, "", cublasOperation_t, cublasOperation_t, int, int, int, const T *, const T *const *, int,
         const T *const *, int, const T *, T *const *, int, int)
KOPS_ALL(symm, "_v2", cublasSideMode_t, cublasFillMode_t, int, int, const T *, const T *, int, const T *, int,
         const T *, T *, int)
KOPS_ALL(trsm, "_v2", cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, int, const T *,
         const T *, int, T *, int)
KOPS_ALL(trmm, "_v2", cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, int, const T *,
         const T *, int, const T *, int, T *, int)
KOPS_ALL(geam, "", cublasOperation_t, cublasOperation_t, int, int, const T *, const T *, int, const T *, const T *, int,
         T *, int)
KOPS_ALL(dgmm, "", cublasSideMode_t, int, int, const T *, int, const T *, int, T *, int)
KOPS_ALL(syrk, "_v2", cublasFillMode_t, cublasOperation_t, int, int, const T *, const T *, int, const T *, T *, int)
KOPS_ALL(trsv, "_v2", cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, const T *, int, T *, int)
KOPS_ALL(axpy, "_v2", int, const T *, const T *, int, T *, int)
KOPS_REAL(symv, "_v2", cublasFillMode_t, int, const T *, const T *, int, const T *, int, const T *, T *, int)
KOPS_COMPLEX(hemv, "_v2", cublasFillMode_t, int, const T *, const T *, int, const T *, int, const T *, T *, int)
KOPS_ALL(scal, "_v2", int, const T *, T *, int)
KOPS_REAL(dot, "_v2", int, const T *, int, const T *, int, T *)
KOPS_REAL(asum, "_v2", int, const T *, int, T *)
KOPS_REAL(nrm2, "_v2", int, const T *, int, T *)
KOPS_REAL(ger, "_v2", int, int, const T *, const T *, int, const T *, int, T *, int)
KOPS_FUNCTION(cublasIsamax, "cublasIsamax_v2", cublasStatus_t(cublasHandle_t, int, const float *, int, int *))
KOPS_FUNCTION(cublasIsamin, "cublasIsamin_v2", cublasStatus_t(cublasHandle_t, int, const float *, int, int *))
KOPS_REAL(rot, "_v2", int, T *, int, T *, int, const T *, const T *)
KOPS_REAL(syr, "_v2", cublasFillMode_t, int, const T *, const T *, int, T *, int)
KOPS_REAL(trsmBatched, "", cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, int, const T *,
          const T *const *, int, T *const *, int, int)
KOPS_REAL(getrfBatched, "", int, T *const *, int, int *, int *, int)
KOPS_REAL(getriBatched, "", int, const T *const *, int, const int *, T *const *, int, int *, int)
KOPS_REAL(gbmv, "_v2", cublasOperation_t, int, int, int, int, const T *, const T *, int, const T *, int, const T *, T *,
          int)
KOPS_REAL(sbmv, "_v2", cublasFillMode_t, int, int, const T *, const T *, int, const T *, int, const T *, T *, int)
KOPS_REAL(tbmv, "_v2", cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, int, const T *, int, T *, int)
KOPS_REAL(spmv, "_v2", cublasFillMode_t, int, const T *, const T *, const T *, int, const T *, T *, int)
KOPS_FUNCTION(cublasIdamax, "cublasIdamax_v2", cublasStatus_t(cublasHandle_t, int, const double *, int, int *))
KOPS_FUNCTION(cublasIdamin, "cublasIdamin_v2", cublasStatus_t(cublasHandle_t, int, const double *, int, int *))
KOPS_FUNCTION(cublasCsscal, "cublasCsscal_v2", cublasStatus_t(cublasHandle_t, int, const float *, cuComplex *, int))
KOPS_FUNCTION(cublasZdscal, "cublasZdscal_v2",
              cublasStatus_t(cublasHandle_t, int, const double *, cuDoubleComplex *, int))
KOPS_COMPLEX(dotc, "_v2", int, const T *, int, const T *, int, T *)
KOPS_COMPLEX(dotu, "_v2", int, const T *, int, const T *, int, T *)
KOPS_FUNCTION(cublasCgeru, "cublasCgeru_v2",
              cublasStatus_t(cublasHandle_t, int, int, const cuComplex *, const cuComplex *, int, const cuComplex *,
                             int, cuComplex *, int))
KOPS_FUNCTION(cublasCgerc, "cublasCgerc_v2",
              cublasStatus_t(cublasHandle_t, int, int, const cuComplex *, const cuComplex *, int, const cuComplex *,
                             int, cuComplex *, int))
KOPS_FUNCTION(cublasCherk, "cublasCherk_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, int, int, const float *,
                             const cuComplex *, int, const float *, cuComplex *, int))
KOPS_FUNCTION(cublasZherk, "cublasZherk_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, int, int, const double *,
                             const cuDoubleComplex *, int, const double *, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasChemm, "cublasChemm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, int, int, const cuComplex *,
                             const cuComplex *, int, const cuComplex *, int, const cuComplex *, cuComplex *, int))
KOPS_FUNCTION(cublasScnrm2, "cublasScnrm2_v2", cublasStatus_t(cublasHandle_t, int, const cuComplex *, int, float *))
KOPS_FUNCTION(cublasDznrm2, "cublasDznrm2_v2",
              cublasStatus_t(cublasHandle_t, int, const cuDoubleComplex *, int, double *))
KOPS_FUNCTION(cublasHgemm, "cublasHgemm",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const __half *,
                             const __half *, int, const __half *, int, const __half *, __half *, int))
KOPS_FUNCTION(cublasHgemmStridedBatched, "cublasHgemmStridedBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const __half *,
                             const __half *, int, long long int, const __half *, int, long long int, const __half *,
                             __half *, int, long long int, int))
KOPS_FUNCTION(cublasHgemmBatched, "cublasHgemmBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const __half *,
                             const __half *const *, int, const __half *const *, int, const __half *, __half *const *,
                             int, int))
KOPS_FUNCTION(cublasGemmEx, "cublasGemmEx",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                             const void *, cudaDataType, int, const void *, cudaDataType, int, const void *, void *,
                             cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t))
KOPS_FUNCTION(cublasGemmBatchedEx, "cublasGemmBatchedEx",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                             const void *const *, cudaDataType, int, const void *const *, cudaDataType, int,
                             const void *, void *const *, cudaDataType, int, int, cublasComputeType_t,
                             cublasGemmAlgo_t))
KOPS_FUNCTION(cublasGemmStridedBatchedEx, "cublasGemmStridedBatchedEx",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                             const void *, cudaDataType, int, long long int, const void *, cudaDataType, int,
                             long long int, const void *, void *, cudaDataType, int, long long int, int,
                             cublasComputeType_t, cublasGemmAlgo_t))
KOPS_FUNCTION(cublasSgemmEx, "cublasSgemmEx",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const float *,
                             const void *, cudaDataType, int, const void *, cudaDataType, int, const float *, void *,
                             cudaDataType, int))
KOPS_FUNCTION(cublasAxpyEx, "cublasAxpyEx",
              cublasStatus_t(cublasHandle_t, int, const void *, cudaDataType, const void *, cudaDataType, int, void *,
                             cudaDataType, int, cudaDataType))
KOPS_FUNCTION(cublasScalEx, "cublasScalEx",
              cublasStatus_t(cublasHandle_t, int, const void *, cudaDataType, void *, cudaDataType, int, cudaDataType))
KOPS_FUNCTION(cublasDotEx, "cublasDotEx",
              cublasStatus_t(cublasHandle_t, int, const void *, cudaDataType, int, const void *, cudaDataType, int,
                             void *, cudaDataType, cudaDataType))
KOPS_FUNCTION(cublasNrm2Ex, "cublasNrm2Ex",
              cublasStatus_t(cublasHandle_t, int, const void *, cudaDataType, int, void *, cudaDataType, cudaDataType))
#undef KOPS_FUNCTION
#undef KOPS_TYPED
#undef KOPS_DECLARED
#undef KOPS_REAL
#undef KOPS_COMPLEX
#undef KOPS_ALL

inline const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
#define _(NAME)                                                                                                        \
    case NAME:                                                                                                         \
        return #NAME;
        _(CUBLAS_STATUS_SUCCESS)
        _(CUBLAS_STATUS_NOT_INITIALIZED)
        _(CUBLAS_STATUS_ALLOC_FAILED)
        _(CUBLAS_STATUS_INVALID_VALUE)
        _(CUBLAS_STATUS_ARCH_MISMATCH)
        _(CUBLAS_STATUS_MAPPING_ERROR)
        _(CUBLAS_STATUS_EXECUTION_FAILED)
        _(CUBLAS_STATUS_INTERNAL_ERROR)
        _(CUBLAS_STATUS_NOT_SUPPORTED)
        _(CUBLAS_STATUS_LICENSE_ERROR)
#undef _
    }
    return "CUBLAS_STATUS_UNKNOWN";
}
inline const char *cublasGetStatusString(cublasStatus_t status)
{
    return cublasGetStatusName(status);
}

#define TORCH_CUDABLAS_CHECK(EXPRESSION)                                                                               \
    do {                                                                                                               \
        const cublasStatus_t kops_status = EXPRESSION;                                                                 \
        if (kops_status != CUBLAS_STATUS_SUCCESS)                                                                      \
            ::kops::fail<::c10::Error>(                                                                                \
                ::c10::str("CUDA error: ", cublasGetStatusName(kops_status), " when calling `", #EXPRESSION, "`"));    \
    } while (0)

namespace at::cuda
{
// torch's handle of the current device and stream.
inline cublasHandle_t getCurrentCUDABlasHandle()
{
    cublasHandle_t handle = nullptr;
    C10_CUDA_CHECK(kops::cuda_out(&handle, "getCurrentCUDABlasHandle", {}));
    return handle;
}
} // namespace at::cuda
