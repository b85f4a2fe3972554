"""Sources of kernels for compute capability 9.0: tensor maps, grids that synchronise, early launches. They are written by what PTX's
manual says; test_hopper_kernels.py runs them on a GPU."""

# What the kernels with tensor maps share: a barrier of shared memory that bytes arrive at.
BOXES = """#include <cuda.h>
#include <stdint.h>

__device__ inline uint32_t address(const void* p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// By one thread, before the others see the barrier.
__device__ inline void expect(uint64_t* barrier, uint32_t bytes)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}

__device__ inline void load(void* to, const CUtensorMap& map, int x, int y, uint64_t* barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(address(to)), "l"(&map), "r"(x), "r"(y), "r"(address(barrier))
                 : "memory");
}

__device__ inline void wait(uint64_t* barrier)
{
    uint32_t done = 0;

    while (!done)
        asm volatile("{\\n"
                     "    .reg .pred p;\\n"
                     "    mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\\n"
                     "    selp.u32 %0, 1, 0, p;\\n"
                     "}\\n"
                     : "=r"(done)
                     : "r"(address(barrier))
                     : "memory");
}

__device__ inline void store(const CUtensorMap& map, int x, int y, const void* from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(address(from))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// The box that this block copies, of 32 x 32 floats, to a dense tensor whose extents are multiples of 32: it also has what
// the map reads outside of its tensor. With a swizzle of 128 bytes the pieces of 16 bytes of row r lie at place ^ r % 8.
__device__ inline void copy(float* out, const CUtensorMap& in, int width, bool swizzled)
{
    __shared__ alignas(1024) float box[32][32];
    __shared__ alignas(8) uint64_t barrier;
    const int x = 32 * blockIdx.x, y = 32 * blockIdx.y;

    if (threadIdx.x == 0)
        expect(&barrier, sizeof(box));
    __syncthreads();
    if (threadIdx.x == 0)
        load(box, in, x, y, &barrier);
    wait(&barrier);
    for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x) {
        const int row = i / 32, column = i % 32;
        const int place = swizzled ? ((column / 4) ^ (row % 8)) * 4 + column % 4 : column;

        out[(size_t)(y + row) * width + x + column] = box[row][place];
    }
}

extern "C" __global__ void copy_boxes(float* out, const __grid_constant__ CUtensorMap in, int width)
{
    copy(out, in, width, false);
}

extern "C" __global__ void copy_swizzled(float* out, const __grid_constant__ CUtensorMap in, int width)
{
    copy(out, in, width, true);
}

// Both ways by maps; elements of a box that lie outside of the tensor are not written.
extern "C" __global__ void square_boxes(const __grid_constant__ CUtensorMap out, const __grid_constant__ CUtensorMap in)
{
    __shared__ alignas(1024) float box[32][32];
    __shared__ alignas(8) uint64_t barrier;
    const int x = 32 * blockIdx.x, y = 32 * blockIdx.y;

    if (threadIdx.x == 0)
        expect(&barrier, sizeof(box));
    __syncthreads();
    if (threadIdx.x == 0)
        load(box, in, x, y, &barrier);
    wait(&barrier);
    for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x)
        box[i / 32][i % 32] *= box[i / 32][i % 32];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0)
        store(out, x, y, box);
}
"""

# The sum of n numbers in one launch: each block sums a part, and when all have, the first one sums theirs.
GRID_SUM = """#include <cooperative_groups.h>

__device__ float sum_of_block(const float* from, int begin, int end, int step)
{
    __shared__ float parts[256];
    float sum = 0;

    for (int i = begin; i < end; i += step)
        sum += from[i];
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half)
            parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    sum = parts[0];
    __syncthreads();
    return sum;
}

extern "C" __global__ void grid_sum(float* sum, float* parts, const float* numbers, int n)
{
    const float own = sum_of_block(numbers, blockIdx.x * blockDim.x + threadIdx.x, n, gridDim.x * blockDim.x);

    if (threadIdx.x == 0)
        parts[blockIdx.x] = own;
    cooperative_groups::this_grid().sync();
    if (blockIdx.x)
        return;
    const float all = sum_of_block(parts, threadIdx.x, gridDim.x, blockDim.x);
    if (threadIdx.x == 0)
        *sum = all;
}
"""

# The next kernel may begin at once; what the one before has written is read after the wait alone.
CHAIN = """
extern "C" __global__ void add_one(float* out, const float* in, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (i < n)
        out[i] = in[i] + 1;
}
"""
