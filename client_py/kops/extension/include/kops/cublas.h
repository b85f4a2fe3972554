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
KOPS_FUNCTION(cublasScopy, "cublasScopy_v2", cublasStatus_t(cublasHandle_t, int, const float *, int, float *, int))
KOPS_FUNCTION(cublasSswap, "cublasSswap_v2", cublasStatus_t(cublasHandle_t, int, float *, int, float *, int))
KOPS_FUNCTION(cublasSgemv, "cublasSgemv_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, int, int, const float *, const float *, int,
                             const float *, int, const float *, float *, int))
KOPS_FUNCTION(cublasSgemm, "cublasSgemm_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const float *,
                             const float *, int, const float *, int, const float *, float *, int))
KOPS_FUNCTION(cublasSgemmStridedBatched, "cublasSgemmStridedBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const float *,
                             const float *, int, long long int, const float *, int, long long int, const float *,
                             float *, int, long long int, int))
KOPS_FUNCTION(cublasSgemmBatched, "cublasSgemmBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const float *,
                             const float *const *, int, const float *const *, int, const float *, float *const *, int,
                             int))
KOPS_FUNCTION(cublasSsymm, "cublasSsymm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, int, int, const float *, const float *,
                             int, const float *, int, const float *, float *, int))
KOPS_FUNCTION(cublasStrsm, "cublasStrsm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const float *, const float *, int, float *, int))
KOPS_FUNCTION(cublasStrmm, "cublasStrmm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const float *, const float *, int, const float *, int, float *, int))
KOPS_FUNCTION(cublasSgeam, "cublasSgeam",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, const float *,
                             const float *, int, const float *, const float *, int, float *, int))
KOPS_FUNCTION(cublasSdgmm, "cublasSdgmm",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, int, int, const float *, int, const float *, int,
                             float *, int))
KOPS_FUNCTION(cublasSsyrk, "cublasSsyrk_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, int, int, const float *,
                             const float *, int, const float *, float *, int))
KOPS_FUNCTION(cublasStrsv, "cublasStrsv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, const float *,
                             int, float *, int))
KOPS_FUNCTION(cublasSaxpy, "cublasSaxpy_v2",
              cublasStatus_t(cublasHandle_t, int, const float *, const float *, int, float *, int))
KOPS_FUNCTION(cublasSsymv, "cublasSsymv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, const float *, const float *, int, const float *,
                             int, const float *, float *, int))
KOPS_FUNCTION(cublasDcopy, "cublasDcopy_v2", cublasStatus_t(cublasHandle_t, int, const double *, int, double *, int))
KOPS_FUNCTION(cublasDswap, "cublasDswap_v2", cublasStatus_t(cublasHandle_t, int, double *, int, double *, int))
KOPS_FUNCTION(cublasDgemv, "cublasDgemv_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, int, int, const double *, const double *, int,
                             const double *, int, const double *, double *, int))
KOPS_FUNCTION(cublasDgemm, "cublasDgemm_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const double *,
                             const double *, int, const double *, int, const double *, double *, int))
KOPS_FUNCTION(cublasDgemmStridedBatched, "cublasDgemmStridedBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const double *,
                             const double *, int, long long int, const double *, int, long long int, const double *,
                             double *, int, long long int, int))
KOPS_FUNCTION(cublasDgemmBatched, "cublasDgemmBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const double *,
                             const double *const *, int, const double *const *, int, const double *, double *const *,
                             int, int))
KOPS_FUNCTION(cublasDsymm, "cublasDsymm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, int, int, const double *,
                             const double *, int, const double *, int, const double *, double *, int))
KOPS_FUNCTION(cublasDtrsm, "cublasDtrsm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const double *, const double *, int, double *, int))
KOPS_FUNCTION(cublasDtrmm, "cublasDtrmm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const double *, const double *, int, const double *, int, double *, int))
KOPS_FUNCTION(cublasDgeam, "cublasDgeam",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, const double *,
                             const double *, int, const double *, const double *, int, double *, int))
KOPS_FUNCTION(cublasDdgmm, "cublasDdgmm",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, int, int, const double *, int, const double *, int,
                             double *, int))
KOPS_FUNCTION(cublasDsyrk, "cublasDsyrk_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, int, int, const double *,
                             const double *, int, const double *, double *, int))
KOPS_FUNCTION(cublasDtrsv, "cublasDtrsv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, const double *,
                             int, double *, int))
KOPS_FUNCTION(cublasDaxpy, "cublasDaxpy_v2",
              cublasStatus_t(cublasHandle_t, int, const double *, const double *, int, double *, int))
KOPS_FUNCTION(cublasDsymv, "cublasDsymv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, const double *, const double *, int, const double *,
                             int, const double *, double *, int))
KOPS_FUNCTION(cublasCcopy, "cublasCcopy_v2",
              cublasStatus_t(cublasHandle_t, int, const cuComplex *, int, cuComplex *, int))
KOPS_FUNCTION(cublasCswap, "cublasCswap_v2", cublasStatus_t(cublasHandle_t, int, cuComplex *, int, cuComplex *, int))
KOPS_FUNCTION(cublasCgemv, "cublasCgemv_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, int, int, const cuComplex *, const cuComplex *, int,
                             const cuComplex *, int, const cuComplex *, cuComplex *, int))
KOPS_FUNCTION(cublasCgemm, "cublasCgemm_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const cuComplex *,
                             const cuComplex *, int, const cuComplex *, int, const cuComplex *, cuComplex *, int))
KOPS_FUNCTION(cublasCgemmStridedBatched, "cublasCgemmStridedBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const cuComplex *,
                             const cuComplex *, int, long long int, const cuComplex *, int, long long int,
                             const cuComplex *, cuComplex *, int, long long int, int))
KOPS_FUNCTION(cublasCgemmBatched, "cublasCgemmBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const cuComplex *,
                             const cuComplex *const *, int, const cuComplex *const *, int, const cuComplex *,
                             cuComplex *const *, int, int))
KOPS_FUNCTION(cublasCsymm, "cublasCsymm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, int, int, const cuComplex *,
                             const cuComplex *, int, const cuComplex *, int, const cuComplex *, cuComplex *, int))
KOPS_FUNCTION(cublasCtrsm, "cublasCtrsm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const cuComplex *, const cuComplex *, int, cuComplex *, int))
KOPS_FUNCTION(cublasCtrmm, "cublasCtrmm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const cuComplex *, const cuComplex *, int, const cuComplex *, int, cuComplex *,
                             int))
KOPS_FUNCTION(cublasCgeam, "cublasCgeam",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, const cuComplex *,
                             const cuComplex *, int, const cuComplex *, const cuComplex *, int, cuComplex *, int))
KOPS_FUNCTION(cublasCdgmm, "cublasCdgmm",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, int, int, const cuComplex *, int, const cuComplex *, int,
                             cuComplex *, int))
KOPS_FUNCTION(cublasCsyrk, "cublasCsyrk_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, int, int, const cuComplex *,
                             const cuComplex *, int, const cuComplex *, cuComplex *, int))
KOPS_FUNCTION(cublasCtrsv, "cublasCtrsv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int,
                             const cuComplex *, int, cuComplex *, int))
KOPS_FUNCTION(cublasCaxpy, "cublasCaxpy_v2",
              cublasStatus_t(cublasHandle_t, int, const cuComplex *, const cuComplex *, int, cuComplex *, int))
KOPS_FUNCTION(cublasChemv, "cublasChemv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, const cuComplex *, const cuComplex *, int,
                             const cuComplex *, int, const cuComplex *, cuComplex *, int))
KOPS_FUNCTION(cublasZcopy, "cublasZcopy_v2",
              cublasStatus_t(cublasHandle_t, int, const cuDoubleComplex *, int, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZswap, "cublasZswap_v2",
              cublasStatus_t(cublasHandle_t, int, cuDoubleComplex *, int, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZgemv, "cublasZgemv_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, int, int, const cuDoubleComplex *,
                             const cuDoubleComplex *, int, const cuDoubleComplex *, int, const cuDoubleComplex *,
                             cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZgemm, "cublasZgemm_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                             const cuDoubleComplex *, const cuDoubleComplex *, int, const cuDoubleComplex *, int,
                             const cuDoubleComplex *, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZgemmStridedBatched, "cublasZgemmStridedBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                             const cuDoubleComplex *, const cuDoubleComplex *, int, long long int,
                             const cuDoubleComplex *, int, long long int, const cuDoubleComplex *, cuDoubleComplex *,
                             int, long long int, int))
KOPS_FUNCTION(cublasZgemmBatched, "cublasZgemmBatched",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                             const cuDoubleComplex *, const cuDoubleComplex *const *, int,
                             const cuDoubleComplex *const *, int, const cuDoubleComplex *, cuDoubleComplex *const *,
                             int, int))
KOPS_FUNCTION(cublasZsymm, "cublasZsymm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, int, int, const cuDoubleComplex *,
                             const cuDoubleComplex *, int, const cuDoubleComplex *, int, const cuDoubleComplex *,
                             cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZtrsm, "cublasZtrsm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const cuDoubleComplex *, const cuDoubleComplex *, int, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZtrmm, "cublasZtrmm_v2",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const cuDoubleComplex *, const cuDoubleComplex *, int, const cuDoubleComplex *,
                             int, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZgeam, "cublasZgeam",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, const cuDoubleComplex *,
                             const cuDoubleComplex *, int, const cuDoubleComplex *, const cuDoubleComplex *, int,
                             cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZdgmm, "cublasZdgmm",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, int, int, const cuDoubleComplex *, int,
                             const cuDoubleComplex *, int, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZsyrk, "cublasZsyrk_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, int, int, const cuDoubleComplex *,
                             const cuDoubleComplex *, int, const cuDoubleComplex *, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZtrsv, "cublasZtrsv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int,
                             const cuDoubleComplex *, int, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZaxpy, "cublasZaxpy_v2",
              cublasStatus_t(cublasHandle_t, int, const cuDoubleComplex *, const cuDoubleComplex *, int,
                             cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZhemv, "cublasZhemv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, const cuDoubleComplex *, const cuDoubleComplex *,
                             int, const cuDoubleComplex *, int, const cuDoubleComplex *, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasSscal, "cublasSscal_v2", cublasStatus_t(cublasHandle_t, int, const float *, float *, int))
KOPS_FUNCTION(cublasSdot, "cublasSdot_v2",
              cublasStatus_t(cublasHandle_t, int, const float *, int, const float *, int, float *))
KOPS_FUNCTION(cublasSasum, "cublasSasum_v2", cublasStatus_t(cublasHandle_t, int, const float *, int, float *))
KOPS_FUNCTION(cublasSnrm2, "cublasSnrm2_v2", cublasStatus_t(cublasHandle_t, int, const float *, int, float *))
KOPS_FUNCTION(cublasSger, "cublasSger_v2",
              cublasStatus_t(cublasHandle_t, int, int, const float *, const float *, int, const float *, int, float *,
                             int))
KOPS_FUNCTION(cublasIsamax, "cublasIsamax_v2", cublasStatus_t(cublasHandle_t, int, const float *, int, int *))
KOPS_FUNCTION(cublasIsamin, "cublasIsamin_v2", cublasStatus_t(cublasHandle_t, int, const float *, int, int *))
KOPS_FUNCTION(cublasSrot, "cublasSrot_v2",
              cublasStatus_t(cublasHandle_t, int, float *, int, float *, int, const float *, const float *))
KOPS_FUNCTION(cublasSsyr, "cublasSsyr_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, const float *, const float *, int, float *, int))
KOPS_FUNCTION(cublasStrsmBatched, "cublasStrsmBatched",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const float *, const float *const *, int, float *const *, int, int))
KOPS_FUNCTION(cublasSgetrfBatched, "cublasSgetrfBatched",
              cublasStatus_t(cublasHandle_t, int, float *const *, int, int *, int *, int))
KOPS_FUNCTION(cublasSgetriBatched, "cublasSgetriBatched",
              cublasStatus_t(cublasHandle_t, int, const float *const *, int, const int *, float *const *, int, int *,
                             int))
KOPS_FUNCTION(cublasSgbmv, "cublasSgbmv_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, int, int, int, int, const float *, const float *, int,
                             const float *, int, const float *, float *, int))
KOPS_FUNCTION(cublasSsbmv, "cublasSsbmv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, int, const float *, const float *, int,
                             const float *, int, const float *, float *, int))
KOPS_FUNCTION(cublasStbmv, "cublasStbmv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, int,
                             const float *, int, float *, int))
KOPS_FUNCTION(cublasSspmv, "cublasSspmv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, const float *, const float *, const float *, int,
                             const float *, float *, int))
KOPS_FUNCTION(cublasDscal, "cublasDscal_v2", cublasStatus_t(cublasHandle_t, int, const double *, double *, int))
KOPS_FUNCTION(cublasDdot, "cublasDdot_v2",
              cublasStatus_t(cublasHandle_t, int, const double *, int, const double *, int, double *))
KOPS_FUNCTION(cublasDasum, "cublasDasum_v2", cublasStatus_t(cublasHandle_t, int, const double *, int, double *))
KOPS_FUNCTION(cublasDnrm2, "cublasDnrm2_v2", cublasStatus_t(cublasHandle_t, int, const double *, int, double *))
KOPS_FUNCTION(cublasDger, "cublasDger_v2",
              cublasStatus_t(cublasHandle_t, int, int, const double *, const double *, int, const double *, int,
                             double *, int))
KOPS_FUNCTION(cublasIdamax, "cublasIdamax_v2", cublasStatus_t(cublasHandle_t, int, const double *, int, int *))
KOPS_FUNCTION(cublasIdamin, "cublasIdamin_v2", cublasStatus_t(cublasHandle_t, int, const double *, int, int *))
KOPS_FUNCTION(cublasDrot, "cublasDrot_v2",
              cublasStatus_t(cublasHandle_t, int, double *, int, double *, int, const double *, const double *))
KOPS_FUNCTION(cublasDsyr, "cublasDsyr_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, const double *, const double *, int, double *, int))
KOPS_FUNCTION(cublasDtrsmBatched, "cublasDtrsmBatched",
              cublasStatus_t(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t,
                             int, int, const double *, const double *const *, int, double *const *, int, int))
KOPS_FUNCTION(cublasDgetrfBatched, "cublasDgetrfBatched",
              cublasStatus_t(cublasHandle_t, int, double *const *, int, int *, int *, int))
KOPS_FUNCTION(cublasDgetriBatched, "cublasDgetriBatched",
              cublasStatus_t(cublasHandle_t, int, const double *const *, int, const int *, double *const *, int, int *,
                             int))
KOPS_FUNCTION(cublasDgbmv, "cublasDgbmv_v2",
              cublasStatus_t(cublasHandle_t, cublasOperation_t, int, int, int, int, const double *, const double *, int,
                             const double *, int, const double *, double *, int))
KOPS_FUNCTION(cublasDsbmv, "cublasDsbmv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, int, const double *, const double *, int,
                             const double *, int, const double *, double *, int))
KOPS_FUNCTION(cublasDtbmv, "cublasDtbmv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, int, int,
                             const double *, int, double *, int))
KOPS_FUNCTION(cublasDspmv, "cublasDspmv_v2",
              cublasStatus_t(cublasHandle_t, cublasFillMode_t, int, const double *, const double *, const double *, int,
                             const double *, double *, int))
KOPS_FUNCTION(cublasCscal, "cublasCscal_v2", cublasStatus_t(cublasHandle_t, int, const cuComplex *, cuComplex *, int))
KOPS_FUNCTION(cublasCsscal, "cublasCsscal_v2", cublasStatus_t(cublasHandle_t, int, const float *, cuComplex *, int))
KOPS_FUNCTION(cublasZscal, "cublasZscal_v2",
              cublasStatus_t(cublasHandle_t, int, const cuDoubleComplex *, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasZdscal, "cublasZdscal_v2",
              cublasStatus_t(cublasHandle_t, int, const double *, cuDoubleComplex *, int))
KOPS_FUNCTION(cublasCdotc, "cublasCdotc_v2",
              cublasStatus_t(cublasHandle_t, int, const cuComplex *, int, const cuComplex *, int, cuComplex *))
KOPS_FUNCTION(cublasCdotu, "cublasCdotu_v2",
              cublasStatus_t(cublasHandle_t, int, const cuComplex *, int, const cuComplex *, int, cuComplex *))
KOPS_FUNCTION(cublasZdotc, "cublasZdotc_v2",
              cublasStatus_t(cublasHandle_t, int, const cuDoubleComplex *, int, const cuDoubleComplex *, int,
                             cuDoubleComplex *))
KOPS_FUNCTION(cublasZdotu, "cublasZdotu_v2",
              cublasStatus_t(cublasHandle_t, int, const cuDoubleComplex *, int, const cuDoubleComplex *, int,
                             cuDoubleComplex *))
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
