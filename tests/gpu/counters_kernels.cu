/* Kernels whose counters are compared between the daemon and ncu. Each is bound by something else. As a program (with
 * nvcc) it launches each of them as often as its argument says. */
extern "C" {

__global__ void copy_large(float *out, const float *in, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x)
        ((float4 *)out)[i] = ((const float4 *)in)[i];
}

__global__ void add_one(float *out, const float *in, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        out[i] = in[i] + 1;
}

__global__ void multiply_add(float *out, const float *in, int n)
{
    float a = in[threadIdx.x], b = a + 1, c = a + 2, d = a + 3;

    for (int i = 0; i < n; i++) {
        a = a * 1.0001f + b;
        b = b * 1.0002f + c;
        c = c * 1.0003f + d;
        d = d * 1.0004f + a;
    }
    if (a + b + c + d == 0.123f)
        out[0] = a;
}

__global__ void follow(float *out, const float *in, int n)
{
    int at = threadIdx.x;

    for (int i = 0; i < n; i++)
        at = (int)in[at] + ((at + 8191) & 0xfffff);
    out[threadIdx.x] = (float)at;
}

__device__ void transpose(float *out, const float *in, int n, float *tile, int pitch)
{
    int x = blockIdx.x * 32 + threadIdx.x;

    for (int j = 0; j < 32; j += 8)
        tile[(threadIdx.y + j) * pitch + threadIdx.x] = in[(size_t)(blockIdx.y * 32 + threadIdx.y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    for (int j = 0; j < 32; j += 8)
        out[(size_t)(blockIdx.x * 32 + threadIdx.y + j) * n + x] = tile[threadIdx.x * pitch + threadIdx.y + j];
}

__global__ void transpose_conflicts(float *out, const float *in, int n)
{
    __shared__ float tile[32 * 32];

    transpose(out, in, n, tile, 32);
}

__global__ void transpose_padded(float *out, const float *in, int n)
{
    __shared__ float tile[32 * 33];

    transpose(out, in, n, tile, 33);
}

__global__ void block_sums(float *out, const float *in, int n)
{
    __shared__ float part[256];
    float sum = 0;

    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += in[i];
    part[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = part[0];
}

__global__ void far_apart(float *out, const float *in, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        out[i] = in[(size_t)i * 32 % n];
}

__global__ void in_local_memory(float *out, const float *in, int n)
{
    float kept[64];
    float sum = 0;

    for (int i = 0; i < 64; i++)
        kept[i] = in[(threadIdx.x + i) % n];
    for (int i = 0; i < 256; i++)
        sum += kept[(int)(in[i] + i * 7) & 63];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__global__ void tensor_cores(float *out, const float *in, int n)
{
    unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {4, 5};
    float c[4][4] = {};

    for (int i = 0; i < n; i++)
        for (int j = 0; j < 4; j++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                         "{%0,%1,%2,%3};"
                         : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    if (c[0][0] + c[1][0] + c[2][0] + c[3][0] == -1)
        out[0] = in[0];
}
}

#ifndef __CUDACC_RTC__
#include <cstdlib>

/* How often each kernel runs. */
int main(int argc, char **argv)
{
    enum { FLOATS = 32 << 20 };
    const long rounds = argc > 1 ? strtol(argv[1], NULL, 10) : 1;
    float *out, *in;

    if (cudaMalloc(&out, FLOATS * sizeof(float)) || cudaMalloc(&in, FLOATS * sizeof(float)))
        return 1;
    cudaMemset(out, 0, FLOATS * sizeof(float));
    cudaMemset(in, 0, FLOATS * sizeof(float));
    for (long i = 0; i < rounds; i++) {
#define X(name, n, gx, gy, bx, by) name<<<dim3(gx, gy), dim3(bx, by)>>>(out, in, n);
#include "counters_launches.h"
#undef X
    }
    return cudaDeviceSynchronize() ? 1 : 0;
}
#endif
