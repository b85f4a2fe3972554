/* The common part of all launches. Thread: any. */
#include "plan_launch.h"

#include <string.h>

enum cuda_ops_element cuda_ops_element(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return ELEMENT_F32;
    case DTYPE_F64:
        return ELEMENT_F64;
    case DTYPE_F16:
        return ELEMENT_F16;
    case DTYPE_BF16:
        return ELEMENT_BF16;
    default:
        break;
    }
    return ELEMENT_COUNT;
}

void cuda_ops_set_launch(struct cuda_launch *launch, const char *kernel, const char *variant, uint64_t tiles,
                         const void *params, size_t size)
{
    memset(launch, 0, sizeof *launch);
    launch->kernel = kernel;
    launch->variant = variant;
    launch->grid[0] = tiles == 0 ? 1 : tiles > CUDA_OPS_MAX_GRID ? CUDA_OPS_MAX_GRID : (unsigned)tiles;
    launch->grid[1] = launch->grid[2] = 1;
    launch->block[0] = CUDA_OPS_THREADS;
    launch->block[1] = launch->block[2] = 1;
    launch->params_size = size;
    memcpy(launch->params, params, size);
}
