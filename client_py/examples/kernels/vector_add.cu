// c = a + b, one thread an element.
extern "C" __global__ void vector_add(float *c, const float *a, const float *b, int n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        c[i] = a[i] + b[i];
}
