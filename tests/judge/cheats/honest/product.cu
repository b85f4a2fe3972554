/* kops.solution
{"launches": [{"entry": "product",
               "signature": "out float* out[n * n], const float* a[n * n], const float* b[n * n], int n",
               "grid": "n", "block": 32}]} */
extern "C" __global__ void product(float *out, const float *a, const float *b, int n)
{
    for (int column = threadIdx.x; column < n; column += blockDim.x) {
        float sum = 0;
        for (int k = 0; k < n; k++)
            sum += a[blockIdx.x * n + k] * b[k * n + column];
        out[blockIdx.x * n + column] = sum;
    }
}
