/* kops.solution
{"launches": [{"entry": "affine",
               "signature": "out float* out[n], const float* x[n], const float* y[n], int n",
               "grid": "ceil_div(n, 256)", "block": 256}]} */
extern "C" __global__ void affine(float *out, const float *x, const float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float *kept;
    if (threadIdx.x == 0)
        kept = (float *)malloc(256 * sizeof(float));
    __syncthreads();
    if (i < n && kept) {
        kept[threadIdx.x] = 2 * x[i];
        out[i] = kept[threadIdx.x] + y[i];
    }
    __syncthreads();
    if (threadIdx.x == 0)
        free(kept);
}
