// cuDNN: calls go to the real library.
#pragma once
#include <kops/context.h>

typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnActivationStruct *cudnnActivationDescriptor_t;
typedef struct cudnnConvolutionStruct *cudnnConvolutionDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnOpTensorStruct *cudnnOpTensorDescriptor_t;
typedef struct cudnnPoolingStruct *cudnnPoolingDescriptor_t;
typedef struct cudnnReduceTensorStruct *cudnnReduceTensorDescriptor_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef enum {
    CUDNN_STATUS_SUCCESS = 0,
    CUDNN_STATUS_NOT_INITIALIZED = 1001,
    CUDNN_STATUS_BAD_PARAM = 2000,
    CUDNN_STATUS_NOT_SUPPORTED = 3000,
    CUDNN_STATUS_INTERNAL_ERROR = 4000,
    CUDNN_STATUS_EXECUTION_FAILED = 5000,
    CUDNN_STATUS_ALLOC_FAILED = 4003,
    CUDNN_STATUS_INVALID_VALUE = 2001
} cudnnStatus_t;
typedef enum {
    CUDNN_DATA_FLOAT = 0,
    CUDNN_DATA_DOUBLE = 1,
    CUDNN_DATA_HALF = 2,
    CUDNN_DATA_INT8 = 3,
    CUDNN_DATA_INT32 = 4,
    CUDNN_DATA_INT8x4 = 5,
    CUDNN_DATA_INT8x32 = 8,
    CUDNN_DATA_BFLOAT16 = 9,
    CUDNN_DATA_FP8_E4M3 = 12,
    CUDNN_DATA_FP8_E5M2 = 13,
    CUDNN_DATA_FP8_E8M0 = 15,
    CUDNN_DATA_INT4 = 17,
    CUDNN_DATA_COMPLEX_FP32 = 20,
    CUDNN_DATA_COMPLEX_FP64 = 21
} cudnnDataType_t;
typedef enum { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1, CUDNN_TENSOR_NCHW_VECT_C = 2 } cudnnTensorFormat_t;
typedef enum { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 } cudnnConvolutionMode_t;
typedef enum {
    CUDNN_DEFAULT_MATH = 0,
    CUDNN_TENSOR_OP_MATH = 1,
    CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2,
    CUDNN_FMA_MATH = 3
} cudnnMathType_t;
typedef enum { CUDNN_NOT_PROPAGATE_NAN = 0, CUDNN_PROPAGATE_NAN = 1 } cudnnNanPropagation_t;
typedef enum {
    CUDNN_ACTIVATION_SIGMOID = 0,
    CUDNN_ACTIVATION_RELU = 1,
    CUDNN_ACTIVATION_TANH = 2,
    CUDNN_ACTIVATION_CLIPPED_RELU = 3,
    CUDNN_ACTIVATION_ELU = 4,
    CUDNN_ACTIVATION_IDENTITY = 5,
    CUDNN_ACTIVATION_SWISH = 6
} cudnnActivationMode_t;
typedef enum {
    CUDNN_POOLING_MAX = 0,
    CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING = 1,
    CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING = 2,
    CUDNN_POOLING_MAX_DETERMINISTIC = 3
} cudnnPoolingMode_t;
typedef enum { CUDNN_SOFTMAX_FAST = 0, CUDNN_SOFTMAX_ACCURATE = 1, CUDNN_SOFTMAX_LOG = 2 } cudnnSoftmaxAlgorithm_t;
typedef enum { CUDNN_SOFTMAX_MODE_INSTANCE = 0, CUDNN_SOFTMAX_MODE_CHANNEL = 1 } cudnnSoftmaxMode_t;
typedef enum {
    CUDNN_BATCHNORM_PER_ACTIVATION = 0,
    CUDNN_BATCHNORM_SPATIAL = 1,
    CUDNN_BATCHNORM_SPATIAL_PERSISTENT = 2
} cudnnBatchNormMode_t;
typedef enum { CUDNN_NON_DETERMINISTIC = 0, CUDNN_DETERMINISTIC = 1 } cudnnDeterminism_t;
typedef enum {
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM = 0,
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM = 1,
    CUDNN_CONVOLUTION_FWD_ALGO_GEMM = 2,
    CUDNN_CONVOLUTION_FWD_ALGO_DIRECT = 3,
    CUDNN_CONVOLUTION_FWD_ALGO_FFT = 4,
    CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING = 5,
    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD = 6,
    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED = 7,
    CUDNN_CONVOLUTION_FWD_ALGO_COUNT = 8
} cudnnConvolutionFwdAlgo_t;
typedef enum {
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT = 2,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING = 3,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD = 4,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED = 5,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT = 6
} cudnnConvolutionBwdDataAlgo_t;
typedef enum {
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT = 2,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 = 3,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD = 4,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED = 5,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING = 6,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT = 7
} cudnnConvolutionBwdFilterAlgo_t;
typedef enum {
    CUDNN_OP_TENSOR_ADD = 0,
    CUDNN_OP_TENSOR_MUL = 1,
    CUDNN_OP_TENSOR_MIN = 2,
    CUDNN_OP_TENSOR_MAX = 3,
    CUDNN_OP_TENSOR_SQRT = 4,
    CUDNN_OP_TENSOR_NOT = 5
} cudnnOpTensorOp_t;
typedef enum {
    CUDNN_REDUCE_TENSOR_ADD = 0,
    CUDNN_REDUCE_TENSOR_MUL = 1,
    CUDNN_REDUCE_TENSOR_MIN = 2,
    CUDNN_REDUCE_TENSOR_MAX = 3,
    CUDNN_REDUCE_TENSOR_AMAX = 4,
    CUDNN_REDUCE_TENSOR_AVG = 5,
    CUDNN_REDUCE_TENSOR_NORM1 = 6,
    CUDNN_REDUCE_TENSOR_NORM2 = 7,
    CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS = 8
} cudnnReduceTensorOp_t;
typedef enum {
    CUDNN_REDUCE_TENSOR_NO_INDICES = 0,
    CUDNN_REDUCE_TENSOR_FLATTENED_INDICES = 1
} cudnnReduceTensorIndices_t;
typedef enum {
    CUDNN_32BIT_INDICES = 0,
    CUDNN_64BIT_INDICES = 1,
    CUDNN_16BIT_INDICES = 2,
    CUDNN_8BIT_INDICES = 3
} cudnnIndicesType_t;
typedef struct {
    cudnnConvolutionFwdAlgo_t algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionFwdAlgoPerf_t;
typedef struct {
    cudnnConvolutionBwdDataAlgo_t algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionBwdDataAlgoPerf_t;
typedef struct {
    cudnnConvolutionBwdFilterAlgo_t algo;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    cudnnMathType_t mathType;
    int reserved[3];
} cudnnConvolutionBwdFilterAlgoPerf_t;

#define KOPS_FUNCTION(NAME, ...)                                                                                       \
    inline constexpr kops::LibraryFunction<cudnnStatus_t(__VA_ARGS__)> NAME{"cudnn", #NAME};
KOPS_FUNCTION(cudnnCreate, cudnnHandle_t *)
KOPS_FUNCTION(cudnnDestroy, cudnnHandle_t)
KOPS_FUNCTION(cudnnSetStream, cudnnHandle_t, cudaStream_t)
KOPS_FUNCTION(cudnnGetStream, cudnnHandle_t, cudaStream_t *)
KOPS_FUNCTION(cudnnCreateTensorDescriptor, cudnnTensorDescriptor_t *)
KOPS_FUNCTION(cudnnDestroyTensorDescriptor, cudnnTensorDescriptor_t)
KOPS_FUNCTION(cudnnSetTensor4dDescriptor, cudnnTensorDescriptor_t, cudnnTensorFormat_t, cudnnDataType_t, int, int, int,
              int)
KOPS_FUNCTION(cudnnSetTensor4dDescriptorEx, cudnnTensorDescriptor_t, cudnnDataType_t, int, int, int, int, int, int, int,
              int)
KOPS_FUNCTION(cudnnSetTensorNdDescriptor, cudnnTensorDescriptor_t, cudnnDataType_t, int, const int *, const int *)
KOPS_FUNCTION(cudnnSetTensorNdDescriptorEx, cudnnTensorDescriptor_t, cudnnTensorFormat_t, cudnnDataType_t, int,
              const int *)
KOPS_FUNCTION(cudnnCreateFilterDescriptor, cudnnFilterDescriptor_t *)
KOPS_FUNCTION(cudnnDestroyFilterDescriptor, cudnnFilterDescriptor_t)
KOPS_FUNCTION(cudnnSetFilter4dDescriptor, cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, int, int, int,
              int)
KOPS_FUNCTION(cudnnSetFilterNdDescriptor, cudnnFilterDescriptor_t, cudnnDataType_t, cudnnTensorFormat_t, int,
              const int *)
KOPS_FUNCTION(cudnnCreateConvolutionDescriptor, cudnnConvolutionDescriptor_t *)
KOPS_FUNCTION(cudnnDestroyConvolutionDescriptor, cudnnConvolutionDescriptor_t)
KOPS_FUNCTION(cudnnSetConvolution2dDescriptor, cudnnConvolutionDescriptor_t, int, int, int, int, int, int,
              cudnnConvolutionMode_t, cudnnDataType_t)
KOPS_FUNCTION(cudnnSetConvolutionNdDescriptor, cudnnConvolutionDescriptor_t, int, const int *, const int *, const int *,
              cudnnConvolutionMode_t, cudnnDataType_t)
KOPS_FUNCTION(cudnnSetConvolutionMathType, cudnnConvolutionDescriptor_t, cudnnMathType_t)
KOPS_FUNCTION(cudnnSetConvolutionGroupCount, cudnnConvolutionDescriptor_t, int)
KOPS_FUNCTION(cudnnGetConvolution2dForwardOutputDim, const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t,
              const cudnnFilterDescriptor_t, int *, int *, int *, int *)
KOPS_FUNCTION(cudnnGetConvolutionNdForwardOutputDim, const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t,
              const cudnnFilterDescriptor_t, int, int *)
KOPS_FUNCTION(cudnnGetConvolutionForwardAlgorithm_v7, cudnnHandle_t, const cudnnTensorDescriptor_t,
              const cudnnFilterDescriptor_t, const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t,
              const int, int *, cudnnConvolutionFwdAlgoPerf_t *)
KOPS_FUNCTION(cudnnFindConvolutionForwardAlgorithm, cudnnHandle_t, const cudnnTensorDescriptor_t,
              const cudnnFilterDescriptor_t, const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t,
              const int, int *, cudnnConvolutionFwdAlgoPerf_t *)
KOPS_FUNCTION(cudnnGetConvolutionForwardWorkspaceSize, cudnnHandle_t, const cudnnTensorDescriptor_t,
              const cudnnFilterDescriptor_t, const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t,
              cudnnConvolutionFwdAlgo_t, size_t *)
KOPS_FUNCTION(cudnnConvolutionForward, cudnnHandle_t, const void *, const cudnnTensorDescriptor_t, const void *,
              const cudnnFilterDescriptor_t, const void *, const cudnnConvolutionDescriptor_t,
              cudnnConvolutionFwdAlgo_t, void *, size_t, const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnConvolutionBiasActivationForward, cudnnHandle_t, const void *, const cudnnTensorDescriptor_t,
              const void *, const cudnnFilterDescriptor_t, const void *, const cudnnConvolutionDescriptor_t,
              cudnnConvolutionFwdAlgo_t, void *, size_t, const void *, const cudnnTensorDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const cudnnActivationDescriptor_t,
              const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnConvolutionBackwardData, cudnnHandle_t, const void *, const cudnnFilterDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const cudnnConvolutionDescriptor_t,
              cudnnConvolutionBwdDataAlgo_t, void *, size_t, const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnConvolutionBackwardFilter, cudnnHandle_t, const void *, const cudnnTensorDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const cudnnConvolutionDescriptor_t,
              cudnnConvolutionBwdFilterAlgo_t, void *, size_t, const void *, const cudnnFilterDescriptor_t, void *)
KOPS_FUNCTION(cudnnGetConvolutionBackwardDataWorkspaceSize, cudnnHandle_t, const cudnnFilterDescriptor_t,
              const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t,
              cudnnConvolutionBwdDataAlgo_t, size_t *)
KOPS_FUNCTION(cudnnGetConvolutionBackwardFilterWorkspaceSize, cudnnHandle_t, const cudnnTensorDescriptor_t,
              const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t, const cudnnFilterDescriptor_t,
              cudnnConvolutionBwdFilterAlgo_t, size_t *)
KOPS_FUNCTION(cudnnGetConvolutionBackwardDataAlgorithm_v7, cudnnHandle_t, const cudnnFilterDescriptor_t,
              const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t,
              const int, int *, cudnnConvolutionBwdDataAlgoPerf_t *)
KOPS_FUNCTION(cudnnGetConvolutionBackwardFilterAlgorithm_v7, cudnnHandle_t, const cudnnTensorDescriptor_t,
              const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t, const cudnnFilterDescriptor_t,
              const int, int *, cudnnConvolutionBwdFilterAlgoPerf_t *)
KOPS_FUNCTION(cudnnCreateActivationDescriptor, cudnnActivationDescriptor_t *)
KOPS_FUNCTION(cudnnDestroyActivationDescriptor, cudnnActivationDescriptor_t)
KOPS_FUNCTION(cudnnSetActivationDescriptor, cudnnActivationDescriptor_t, cudnnActivationMode_t, cudnnNanPropagation_t,
              double)
KOPS_FUNCTION(cudnnActivationForward, cudnnHandle_t, cudnnActivationDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnActivationBackward, cudnnHandle_t, cudnnActivationDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnAddTensor, cudnnHandle_t, const void *, const cudnnTensorDescriptor_t, const void *, const void *,
              const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnOpTensor, cudnnHandle_t, const cudnnOpTensorDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const void *, const cudnnTensorDescriptor_t, const void *,
              const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnCreateOpTensorDescriptor, cudnnOpTensorDescriptor_t *)
KOPS_FUNCTION(cudnnSetOpTensorDescriptor, cudnnOpTensorDescriptor_t, cudnnOpTensorOp_t, cudnnDataType_t,
              cudnnNanPropagation_t)
KOPS_FUNCTION(cudnnDestroyOpTensorDescriptor, cudnnOpTensorDescriptor_t)
KOPS_FUNCTION(cudnnSoftmaxForward, cudnnHandle_t, cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnSoftmaxBackward, cudnnHandle_t, cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t, const void *, const void *,
              const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnCreatePoolingDescriptor, cudnnPoolingDescriptor_t *)
KOPS_FUNCTION(cudnnDestroyPoolingDescriptor, cudnnPoolingDescriptor_t)
KOPS_FUNCTION(cudnnSetPooling2dDescriptor, cudnnPoolingDescriptor_t, cudnnPoolingMode_t, cudnnNanPropagation_t, int,
              int, int, int, int, int)
KOPS_FUNCTION(cudnnSetPoolingNdDescriptor, cudnnPoolingDescriptor_t, const cudnnPoolingMode_t,
              const cudnnNanPropagation_t, int, const int *, const int *, const int *)
KOPS_FUNCTION(cudnnPoolingForward, cudnnHandle_t, const cudnnPoolingDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnPoolingBackward, cudnnHandle_t, const cudnnPoolingDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t, const void *,
              const cudnnTensorDescriptor_t, const void *, const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnGetPooling2dForwardOutputDim, const cudnnPoolingDescriptor_t, const cudnnTensorDescriptor_t, int *,
              int *, int *, int *)
KOPS_FUNCTION(cudnnBatchNormalizationForwardInference, cudnnHandle_t, cudnnBatchNormMode_t, const void *, const void *,
              const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t, void *,
              const cudnnTensorDescriptor_t, const void *, const void *, const void *, const void *, double)
KOPS_FUNCTION(cudnnBatchNormalizationForwardTraining, cudnnHandle_t, cudnnBatchNormMode_t, const void *, const void *,
              const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t, void *,
              const cudnnTensorDescriptor_t, const void *, const void *, double, void *, void *, double, void *, void *)
KOPS_FUNCTION(cudnnDeriveBNTensorDescriptor, cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
              cudnnBatchNormMode_t)
KOPS_FUNCTION(cudnnReduceTensor, cudnnHandle_t, const cudnnReduceTensorDescriptor_t, void *, size_t, void *, size_t,
              const void *, const cudnnTensorDescriptor_t, const void *, const void *, const cudnnTensorDescriptor_t,
              void *)
KOPS_FUNCTION(cudnnCreateReduceTensorDescriptor, cudnnReduceTensorDescriptor_t *)
KOPS_FUNCTION(cudnnSetReduceTensorDescriptor, cudnnReduceTensorDescriptor_t, cudnnReduceTensorOp_t, cudnnDataType_t,
              cudnnNanPropagation_t, cudnnReduceTensorIndices_t, cudnnIndicesType_t)
KOPS_FUNCTION(cudnnDestroyReduceTensorDescriptor, cudnnReduceTensorDescriptor_t)
KOPS_FUNCTION(cudnnGetReductionWorkspaceSize, cudnnHandle_t, const cudnnReduceTensorDescriptor_t,
              const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, size_t *)
KOPS_FUNCTION(cudnnTransformTensor, cudnnHandle_t, const void *, const cudnnTensorDescriptor_t, const void *,
              const void *, const cudnnTensorDescriptor_t, void *)
KOPS_FUNCTION(cudnnScaleTensor, cudnnHandle_t, const cudnnTensorDescriptor_t, void *, const void *)
KOPS_FUNCTION(cudnnSetTensor, cudnnHandle_t, const cudnnTensorDescriptor_t, void *, const void *)
inline constexpr kops::LibraryFunction<const char *(cudnnStatus_t)> cudnnGetErrorString{"cudnn", "cudnnGetErrorString"};
#undef KOPS_FUNCTION

namespace at::native
{
// torch's handle of the current device and stream.
inline cudnnHandle_t getCudnnHandle()
{
    cudnnHandle_t handle = nullptr;
    C10_CUDA_CHECK(kops::cuda_out(&handle, "getCudnnHandle", {}));
    return handle;
}
} // namespace at::native
