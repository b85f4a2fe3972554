// c = a + b with a grid of any size: each thread goes on by the number of all threads.
extern "C" __global__ void add2_kernel(float *c, const float *a, const float *b, int n)
{
    unsigned stride = gridDim.x * blockDim.x;

    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        c[i] = a[i] + b[i];
}
