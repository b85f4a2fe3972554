/* Launches: what no device takes is refused, the parameters are copied, the rest is the streams'. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "function.h"
#include "standin.h"
#include "user_kernels.h"

static bool geometry_is_valid(const unsigned grid[3], const unsigned block[3])
{
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2])
        return false;
    if (grid[0] > 2147483647U || grid[1] > 65535 || grid[2] > 65535)
        return false;
    return block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64 && (uint64_t)block[0] * block[1] * block[2] <= 1024;
}

/* Of the first parameter, of which ours have no other, where a launch gives pointers; all of them where it gives a
 * buffer. */
static const void *params_find(size_t size, void **pointers, void **extra)
{
    const void *data = NULL;
    size_t given = 0;

    if (pointers)
        return extra ? NULL : pointers[0];
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            data = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            given = *(const size_t *)extra[1];
    }
    return given == size ? data : NULL;
}

static CUresult own_op_fill(const struct function *function, const CUDA_KERNEL_NODE_PARAMS *p, struct op *op)
{
    size_t size = kernel_params_size(function->kernel);
    const void *params = params_find(size, p->kernelParams, p->extra);

    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    op->launch.kernel = function->kernel;
    memcpy(op->launch.params, params, size);
    if (!kernel_uses(function->kernel, params, op))
        return misuse(CUDA_ERROR_INVALID_VALUE, "the kernel's parameters make no sense");
    return CUDA_SUCCESS;
}

static CUresult user_params_copy(const struct cubin_kernel *code, const CUDA_KERNEL_NODE_PARAMS *p, unsigned char *to)
{
    const void *buffer;

    if (code->param_bytes > MAX_PARAMS)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (code->n_params && p->kernelParams && !p->extra) {
        for (unsigned i = 0; i < code->n_params; i++)
            memcpy(to + code->offsets[i], p->kernelParams[i], code->sizes[i]);
        return CUDA_SUCCESS;
    }
    buffer = code->n_params ? params_find(code->param_bytes, NULL, p->extra) : to;
    if (!buffer || p->kernelParams)
        return misuse(CUDA_ERROR_INVALID_VALUE, "%s takes %u bytes of parameters", code->name, code->param_bytes);
    memmove(to, buffer, code->param_bytes);
    return CUDA_SUCCESS;
}

static CUresult user_op_fill(const struct function *function, const CUDA_KERNEL_NODE_PARAMS *p, struct op *op)
{
    CUresult r;

    if ((uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ > function_max_threads(function))
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (!function->user) {
        fprintf(stderr, "cuda_standin: nobody has told how to compute the kernel %s\n", function->code->name);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    r = user_params_copy(function->code, p, op->launch.params);
    if (r != CUDA_SUCCESS)
        return r;
    op->launch.user = function->user;
    user_kernel_uses(function->user, p, op->launch.params, op);
    return CUDA_SUCCESS;
}

CUresult kernel_op_new(const CUDA_KERNEL_NODE_PARAMS *p, struct op **ret_op)
{
    const unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ};
    const unsigned block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    const struct function *function = handle_get(HANDLE_FUNCTION, p->func);
    struct op *op;
    CUresult r;

    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!geometry_is_valid(grid, block) || p->sharedMemBytes > function->shared_limit)
        return misuse(CUDA_ERROR_INVALID_VALUE, "grid %u×%u×%u, block %u×%u×%u, %u bytes shared (limit %u)", grid[0],
                      grid[1], grid[2], block[0], block[1], block[2], p->sharedMemBytes, function->shared_limit);
    op = op_new(OP_KERNEL);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->launch.given = *p;
    op->launch.given.kernelParams = op->launch.given.extra = NULL;
    r = function->code ? user_op_fill(function, p, op) : own_op_fill(function, p, op);
    if (r != CUDA_SUCCESS) {
        free(op);
        return r;
    }
    *ret_op = op;
    return CUDA_SUCCESS;
}

static CUresult launch(const char *name, CUstream handle, const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct stream *stream;
    CUresult r;
    struct op *op;

    ENTER(enter_stream(name, handle, &stream));
    r = kernel_op_new(params, &op);
    if (r != CUDA_SUCCESS)
        return leave(r);
    if (!stream->capture) {
        count(op->launch.kernel && kernel_is_gate(op->launch.kernel) ? STANDIN_COUNTER_stream_gates
                                                                     : STANDIN_COUNTER_launches,
              1);
        if (standin_profiler)
            op->call = standin_profiler->launching(STANDIN_LAUNCH_KERNEL);
        op->last = true;
    }
    return leave(stream_enqueue(stream, op));
}

API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params, void **extra)
{
    return launch("cuLaunchKernel", stream,
                  &(CUDA_KERNEL_NODE_PARAMS){function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                                             params, extra, NULL, NULL});
}

/* CUDA_SUCCESS where the blocks can be grouped so. */
static CUresult cluster_check(CUfunction handle, const CUlaunchConfig *c, const unsigned cluster[3])
{
    const unsigned grid[3] = {c->gridDimX, c->gridDimY, c->gridDimZ};
    const struct function *function;
    uint64_t blocks = 1;
    bool fits = true;

    for (unsigned i = 0; i < 3; i++) {
        fits = fits && cluster[i] && grid[i] % cluster[i] == 0;
        blocks *= cluster[i];
    }
    pthread_mutex_lock(&standin_lock);
    function = handle_get(HANDLE_FUNCTION, handle);
    fits = fits && function && blocks <= function->cluster_limit;
    pthread_mutex_unlock(&standin_lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

enum { MULTIPROCESSORS = 4, MOST_THREADS = 2048, MOST_BLOCKS = 32, MOST_SHARED = 228 << 10, RESERVED_SHARED = 1024 };

/* As if registers were no limit. Under the mutex. */
static unsigned blocks_at_one_time(const struct function *f, uint64_t threads, uint64_t shared)
{
    const uint64_t own = shared + RESERVED_SHARED + (f->code ? f->code->static_shared : 0);
    const uint64_t by_threads = threads ? MOST_THREADS / threads : 0, by_shared = MOST_SHARED / own;
    const uint64_t least = by_threads < by_shared ? by_threads : by_shared;

    return (unsigned)(least < MOST_BLOCKS ? least : MOST_BLOCKS);
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *ret_blocks, CUfunction handle, int threads, size_t shared)
{
    const struct function *f;

    ENTER(enter("cuOccupancyMaxActiveBlocksPerMultiprocessor"));
    f = handle_get(HANDLE_FUNCTION, handle);
    if (!f || !ret_blocks || threads < 1)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_blocks = (int)blocks_at_one_time(f, (uint64_t)threads, shared);
    return leave(CUDA_SUCCESS);
}

static uint64_t cluster_of(const CUlaunchConfig *c)
{
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            return (uint64_t)c->attrs[i].value.clusterDim.x * c->attrs[i].value.clusterDim.y *
                   c->attrs[i].value.clusterDim.z;
    return 1;
}

static uint64_t all_at_one_time(const struct function *f, const CUlaunchConfig *c)
{
    return MULTIPROCESSORS *
           (uint64_t)blocks_at_one_time(f, (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ, c->sharedMemBytes);
}

API cuOccupancyMaxActiveClusters(int *ret_clusters, CUfunction handle, const CUlaunchConfig *c)
{
    const struct function *f;

    ENTER(enter("cuOccupancyMaxActiveClusters"));
    f = handle_get(HANDLE_FUNCTION, handle);
    if (!f || !ret_clusters || !c)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_clusters = (int)(all_at_one_time(f, c) / cluster_of(c));
    return leave(CUDA_SUCCESS);
}

static CUresult cooperative_check(CUfunction handle, const CUlaunchConfig *c)
{
    const struct function *f;
    bool fits;

    pthread_mutex_lock(&standin_lock);
    f = handle_get(HANDLE_FUNCTION, handle);
    fits = f && (uint64_t)c->gridDimX * c->gridDimY * c->gridDimZ <= all_at_one_time(f, c);
    count(STANDIN_COUNTER_cooperative_launches, fits);
    pthread_mutex_unlock(&standin_lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

static void note_early(void)
{
    pthread_mutex_lock(&standin_lock);
    count(STANDIN_COUNTER_early_launches, 1);
    pthread_mutex_unlock(&standin_lock);
}

/* Other attributes say how a device goes about it: accepted as they are. What may begin early begins in order. */
API cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **extra)
{
    if (!c || (c->numAttrs && !c->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const unsigned cluster[3] = {c->attrs[i].value.clusterDim.x, c->attrs[i].value.clusterDim.y,
                                         c->attrs[i].value.clusterDim.z};
            CUresult r = cluster_check(function, c, cluster);

            if (r != CUDA_SUCCESS)
                return r;
        } else if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && c->attrs[i].value.cooperative) {
            CUresult r = cooperative_check(function, c);

            if (r != CUDA_SUCCESS)
                return r;
        } else if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                   c->attrs[i].value.programmaticStreamSerializationAllowed) {
            note_early();
        }
    return launch("cuLaunchKernel", c->hStream,
                  &(CUDA_KERNEL_NODE_PARAMS){function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                                             c->blockDimY, c->blockDimZ, c->sharedMemBytes, params, extra, NULL, NULL});
}
