import kops
import numpy as np

k = kops.connect()
n = 1000
a, b, c = (k.array(np.full(n, value, np.float32)) for value in (1, 2, 0))
x, y, other = k.array(a), k.array(b), k.array(b)
m = np.ones((8, 8), np.float32)
grid, block = 4, 256
source = r"""
extern "C" __global__ void add2_kernel(float* c, const float* a, const float* b, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        c[i] = a[i] + b[i];
}
"""
