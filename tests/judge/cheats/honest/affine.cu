/* kops.solution
{"launches": [{"entry": "affine",
               "signature": "out float* out[n], const float* x[n], const float* y[n], int n",
               "grid": "ceil_div(n, 256)"}]} */
extern "C" __global__ void affine(float *out, const float *x, const float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = 2 * x[i] + y[i];
}
