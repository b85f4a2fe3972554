"""Sources of the kernels that test_kernels.py brings."""

FIVE = """
extern "C" __global__ void add2_kernel(float* c, const float* a, const float* b, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        c[i] = a[i] + b[i];
}

__global__ void vector_add(float* c, const float* a, const float* b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}

extern "C" __global__ void custom_kernel(float* out, const float* in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = 2 * in[i];
}

extern "C" __global__ void square_matrix_kernel(const float* in, float* out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        out[y * width + x] = in[y * width + x] * in[y * width + x];
}

#define TILE 16
extern "C" __global__ void gemm_kernel(float* c, const float* a, const float* b, int n, int m, int k)
{
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    float sum = 0;

    for (int at = 0; at < k; at += TILE) {
        int i = at + threadIdx.x, j = at + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = y < n && i < k ? a[y * k + i] : 0;
        right[threadIdx.y][threadIdx.x] = x < m && j < k ? b[j * m + x] : 0;
        __syncthreads();
        for (int t = 0; t < TILE; t++)
            sum += left[threadIdx.y][t] * right[t][threadIdx.x];
        __syncthreads();
    }
    if (y < n && x < m)
        c[y * m + x] = sum;
}
"""

# One block turns n floats around by way of its shared memory.
REVERSE = """
extern "C" __global__ void reverse(float* out, const float* in, int n)
{
    extern __shared__ float staged[];
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        staged[i] = in[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[i] = staged[n - 1 - i];
}
"""

# Each block of a cluster reads the shared memory of the next one.
RING = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void ring(int* out)
{
    __shared__ int mine;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0)
        mine = (int)blockIdx.x;
    cluster.sync();
    if (threadIdx.x == 0)
        out[blockIdx.x] = *cluster.map_shared_rank(&mine, (cluster.block_rank() + 1) % cluster.num_blocks());
    cluster.sync();
}
"""

SCALE = """
#include <cuda_fp16.h>
template <typename T, int EACH> __global__ void scale(T* out, const T* in, float factor, int n)
{
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * EACH;
    for (int i = first; i < first + EACH && i < n; i++)
        out[i] = (T)(factor * (float)in[i]);
}
"""

HISTOGRAM = """
extern "C" __global__ void histogram_kernel(int* bins, const unsigned char* data, int n)
{
    __shared__ int mine[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        mine[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&mine[data[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        atomicAdd(&bins[i], mine[i]);
}
"""

# A warp a tile of 16 × 16.
WMMA = """
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void wmma_gemm(float* c, const half* a, const half* b, int n, int m, int k)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    int row = blockIdx.y * 16, column = blockIdx.x * 16;

    wmma::fill_fragment(sum, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(left, a + row * k + i, k);
        wmma::load_matrix_sync(right, b + i * m + column, m);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row * m + column, sum, m, wmma::mem_row_major);
}
"""

# What a chain of these gives depends on the order of its links.
STEP = """
extern "C" __global__ void step(int* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = (x[i] * 5 + 1) % 1009;
}
"""

# Takes layouts as numbers, and a null pointer for no bias.
STRIDED = """
extern "C" __global__ void add_bias(float* out, const float* in, const float* bias, int rows, int columns, int out_row,
                                    int out_column)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < columns && y < rows)
        out[y * out_row + x * out_column] = in[y * columns + x] + (bias ? bias[x] : 0);
}
"""

BOUNDED = """
extern "C" __global__ void __launch_bounds__(128) bounded(float* p)
{
    p[threadIdx.x] = 1;
}
"""

BAD = """
extern "C" __global__ void spin(float* p)
{
    while (*(volatile float*)p == 0)
        ;
}

extern "C" __global__ void stray(float* p)
{
    p[(1ull << 40) + threadIdx.x] = 1;
}
"""
