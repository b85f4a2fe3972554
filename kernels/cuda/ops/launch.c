/* The launcher's entry: which variants there are, and what all launches have in common. Thread: any. */
#include "launch.h"

#include <string.h>

#include "plan_launch.h"

static const char *const elementwise_variants[] = {"vector", "strided", NULL};
static const char *const gemm_variants[] = {"tiled", NULL};

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

const char *const *cuda_ops_variants(enum op_id op, enum dtype dtype)
{
    if (cuda_ops_element(dtype) == ELEMENT_COUNT)
        return NULL;
    switch (op) {
    case OP_ADD:
    case OP_SQUARE:
        return elementwise_variants;
    case OP_GEMM:
        return gemm_variants;
    case OP_COUNT:
        break;
    }
    return NULL;
}

static int check_variant(const char *const *variants, const char *variant, struct error *e)
{
    for (size_t i = 0; variants[i]; i++) {
        if (strcmp(variants[i], variant) == 0)
            return 0;
    }
    error_set(e, ERROR_INVALID_ARGUMENT, "no such variant of this op; the first choice would be \"%s\"", variants[0]);
    return error_detail_text(e, "variant", variant);
}

int cuda_ops_launch(enum op_id op, const struct plan *plan, const uint64_t *addresses, const char *variant,
                    const struct cuda_launch_device *device, struct cuda_launch *ret_launch, struct error *e)
{
    const char *const *variants = cuda_ops_variants(op, plan->dtype);

    if (!variants)
        return error_set(e, ERROR_UNSUPPORTED, "there is no CUDA kernel for this op and dtype %s",
                         dtype_name(plan->dtype));
    if (variant && check_variant(variants, variant, e) < 0)
        return -1;
    if (plan->kind == PLAN_GEMM)
        return cuda_ops_launch_gemm(plan, addresses, device, ret_launch, e);
    return cuda_ops_launch_elementwise(op, plan, addresses, variant, ret_launch, e);
}
