// The kernels that user_kernels.c computes, as a GPU's code: the tests of images, and of whoever launches what is in
// them, load what nvcc makes of this. tests/gpu runs the same on a real one.

extern "C" __global__ void add2_kernel(float *c, const float *a, const float *b, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        c[i] = a[i] + b[i];
}

// Mangled, as C++ names it.
__global__ void vector_add(float *c, const float *a, const float *b, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        c[i] = a[i] + b[i];
}

extern "C" __global__ void square_matrix_kernel(const float *in, float *out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;

    if (x < width && y < height)
        out[y * width + x] = in[y * width + x] * in[y * width + x];
}

extern "C" __global__ void gemm_kernel(float *c, const float *a, const float *b, int n, int m, int k)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;

    if (row >= n || column >= m)
        return;
    for (int i = 0; i < k; i++)
        sum += a[row * k + i] * b[i * m + column];
    c[row * m + column] = sum;
}

extern "C" __global__ void custom_kernel(float *out, const float *in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        out[i] = 2 * in[i];
}

extern "C" __global__ void histogram_kernel(unsigned *bins, const unsigned char *data, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[data[i]], 1u);
}

extern "C" __global__ void sum_dynamic_shared(float *out, const float *in, int n)
{
    extern __shared__ float parts[];
    float sum = 0;

    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += in[i];
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned i = 1; i < blockDim.x; i++)
            sum += parts[i];
        out[blockIdx.x] = sum;
    }
}

extern "C" __global__ void spin_forever(float *p)
{
    while (*(volatile float *)p == *(volatile float *)p || true)
        ;
}

extern "C" __global__ void fault_kernel(float *p)
{
    p[(1ull << 40) + threadIdx.x] = 1;
}

extern "C" __global__ void count_forever(unsigned *count)
{
    for (;;)
        atomicAdd(count, 1u);
}

extern "C" __global__ void run_for(unsigned *runs, int us)
{
    unsigned long long start, now;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < 1000ull * us);
    atomicAdd(runs, 1u);
}

extern "C" __global__ void read_range(unsigned *out, unsigned long long address, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = ((volatile const unsigned *)address)[i];
}

extern "C" __global__ void tell_address(unsigned long long *out, const float *p)
{
    *out = (unsigned long long)p;
}

// Needs no device of its own to be compiled for all: what it copies through the maps is the stand-in's to do.
struct alignas(64) tensor_map {
    unsigned long long opaque[16];
};

extern "C" __global__ void square_by_maps(const __grid_constant__ tensor_map out, const __grid_constant__ tensor_map in)
{
    if (out.opaque[0] == in.opaque[0])
        __trap();
}

// Known to nobody, for what an image tells: bounds, static shared memory, parameters that are padded, templates.
struct three {
    char bytes[3];
};

extern "C" __global__ void __launch_bounds__(256) unknown_kernel(three p, char q, double z, float *out)
{
    __shared__ float staged[100];

    staged[threadIdx.x % 100] = (float)z + q;
    __syncthreads();
    out[threadIdx.x] = staged[99 - threadIdx.x % 100] + p.bytes[2];
}
