// Wrong uses, each with a pattern of the compiler's error for its line.
#include <cub/cub.cuh>
#include <torch/extension.h>

struct Opaque {
    int x;
};
void kernel(float *out)
{
    kops::kops_stub(__PRETTY_FUNCTION__, out);
}
void calls(at::Tensor x, at::Tensor y, cublasHandle_t handle)
{
    x.softmax();                                          // error: softmax
    torch::softmax(x, "dim");                             // error: int64_t
    x.sizes(3);                                           // error: sizes
    torch::zeros({2, 3}, x.options(), 7, 8);              // error: zeros
    torch::matmul(x);                                     // error: matmul
    x.not_a_method();                                     // error: not_a_method
    torch::not_a_function(x);                             // error: not_a_function
    torch::nn::Conv2d(1, 2, 3);                           // error: Conv2d
    x.add(y, y, y);                                       // error: add
    at::Half half = x;                                    // error: Half
    cudaNotAFunction(x);                                  // error: cudaNotAFunction
    cudaMemcpy(x, y, 3, cudaMemcpyHostToDevice);          // error: cudaMemcpy|at::Tensor
    cudaMalloc(3);                                        // error: cudaMalloc
    cublasSgemm(handle, CUBLAS_OP_N, 3);                  // error: LibraryFunction
    cublasNotAFunction(handle);                           // error: cublasNotAFunction
    cub::DeviceReduce::Sum(nullptr, 1);                   // error: DeviceReduce
    torch::from_blob(nullptr, {1}, [](void *) {});        // error: from_blob
    AT_DISPATCH_NOT_A_KIND(x.scalar_type(), "x", [&] {}); // error: AT_DISPATCH_NOT_A_KIND
    x.cudnn_convolution(y);                               // error: cudnn_convolution
    TORCH_CHECK_NOT_THERE(true);                          // error: TORCH_CHECK_NOT_THERE
}
