/* kops.solution
{"launches": [{"entry": "product",
               "signature": "out float* out[n * n], const float* a[n * n], const float* b[n * n], int n",
               "grid": "n", "block": 32}]} */
// Multiplies fewer bits than it was given, as tensor cores do with float16.
__device__ float shorter(float x)
{
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & ~0x1fffu);
}

extern "C" __global__ void product(float *out, const float *a, const float *b, int n)
{
    for (int column = threadIdx.x; column < n; column += blockDim.x) {
        float sum = 0;
        for (int k = 0; k < n; k++)
            sum += shorter(a[blockIdx.x * n + k]) * shorter(b[k * n + column]);
        out[blockIdx.x * n + column] = sum;
    }
}
