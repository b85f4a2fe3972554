// out = 2 * in, one thread an element.
extern "C" __global__ void custom_kernel(float *out, const float *in, int n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        out[i] = 2.0f * in[i];
}
