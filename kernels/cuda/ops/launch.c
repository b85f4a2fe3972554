/* The launchers' entry: the table of kernels, the variants of each op, common parts of all launches. Thread: any. */
#include "launch.h"

#include <string.h>

#include "kernel_list.h"
#include "plan_launch.h"

/* ---- the table of kernels ---- */

enum binary {
#define X(name) BINARY_##name,
    CUDA_OPS_BINARIES(X)
#undef X
        BINARY_COUNT
};

const unsigned cuda_ops_binary_count = BINARY_COUNT;

const char *const cuda_ops_binary_names[] = {
#define X(name) [BINARY_##name] = #name,
    CUDA_OPS_BINARIES(X)
#undef X
};

const struct cuda_ops_kernel cuda_ops_kernels[] = {
#define X(binary, symbol) {#symbol, BINARY_##binary, CUDA_OPS_ANY},
    CUDA_OPS_KERNELS(X)
#undef X
#define X(binary, symbol) {#symbol, BINARY_##binary, CUDA_OPS_SM80},
        CUDA_OPS_KERNELS_SM80(X)
#undef X
#define X(binary, symbol) {#symbol, BINARY_##binary, CUDA_OPS_SM90},
            CUDA_OPS_KERNELS_SM90(X)
#undef X
#define X(binary, symbol) {#symbol, BINARY_##binary, CUDA_OPS_SM90A},
                CUDA_OPS_KERNELS_SM90A(X)
#undef X
                    {NULL, 0, CUDA_OPS_ANY},
};

/* ---- launches ---- */

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

/* ---- ops ---- */

static const char *const elementwise_variants[] = {"vector", "rows", "tiles", "strided", NULL};

const char *const *cuda_ops_variants(enum op_id op, enum dtype dtype, enum cuda_ops_level level)
{
    if (op == OP_SCALED_GEMM)
        return cuda_ops_scaled_variants(dtype);
    if ((op == OP_GEMM || op == OP_LINEAR) && cuda_ops_element(dtype) == ELEMENT_COUNT)
        return NULL;
    if (op == OP_GEMM || op == OP_LINEAR)
        return cuda_ops_gemm_variants(op == OP_LINEAR, dtype, level);
    return cuda_ops_has_elementwise(op, dtype) ? elementwise_variants : NULL;
}

static int check_variant(const char *const *variants, const char *variant, struct error *e)
{
    for (size_t i = 0; variants[i]; i++) {
        if (strcmp(variants[i], variant) == 0)
            return 0;
    }
    error_set(e, ERROR_INVALID_ARGUMENT,
              "this op has no such variant for this dtype on this device; one that it has is \"%s\"", variants[0]);
    return error_detail_text(e, "variant", variant);
}

int cuda_ops_launch(enum op_id op, const struct plan *plan, const uint64_t *addresses, const char *variant,
                    const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e)
{
    const char *const *variants = cuda_ops_variants(op, plan->dtype, device->level);

    if (!variants)
        return error_set(e, ERROR_UNSUPPORTED, "there is no CUDA kernel for this op and dtype %s",
                         dtype_name(plan->dtype));
    if (variant && check_variant(variants, variant, e) < 0)
        return -1;
    if (plan->kind == PLAN_GEMM && plan->gemm.has_scales) {
        cuda_ops_launch_scaled(plan, addresses, device, ret_launch);
        return 0;
    }
    if (plan->kind == PLAN_GEMM)
        return cuda_ops_launch_gemm(plan, addresses, variant, device, ret_launch, e);
    return cuda_ops_launch_elementwise(op, plan, addresses, variant, device, ret_launch, e);
}

/* Encodes through a buffer with the alignment that the driver needs. */
static int encode_map(const struct plan_map *m, unsigned char *into, cuda_ops_encoder *encode)
{
    _Alignas(PLAN_MAP_BYTES) unsigned char encoded[PLAN_MAP_BYTES];
    uint32_t box[PLAN_MAP_RANK], steps[PLAN_MAP_RANK];
    int status;

    for (unsigned i = 0; i < PLAN_MAP_RANK; i++) {
        box[i] = m->box[i];
        steps[i] = m->steps[i];
    }
    status = encode(encoded, m->type, m->rank, (void *)(uintptr_t)m->address, m->extents, m->strides, box, steps,
                    m->interleave, m->swizzle, m->promotion, m->fill);
    if (status == 0)
        memcpy(into, encoded, sizeof(encoded));
    return status;
}

int cuda_ops_encode(struct cuda_launch *launch, cuda_ops_encoder *encode)
{
    int status = 0;

    for (unsigned i = 0; status == 0 && i < launch->n_maps; i++)
        status = encode_map(&launch->maps[i].map, launch->params + launch->maps[i].at, encode);
    return status;
}

int cuda_ops_encode_params(const struct plan_kernel *plan, unsigned char *params, cuda_ops_encoder *encode)
{
    int status = 0;

    for (unsigned i = 0; status == 0 && plan->maps >> i; i++) {
        struct plan_map described;

        if (!(plan->maps >> i & 1))
            continue;
        memcpy(&described, params + plan->pointers[i], sizeof(described));
        status = encode_map(&described, params + plan->pointers[i], encode);
    }
    return status;
}

void **cuda_ops_list_params(const struct plan_kernel *plan, unsigned char *params, void *list[KERNELS_PARAMS_MAX])
{
    const unsigned char *offsets = params + plan->param_bytes - plan->n_listed * sizeof(uint16_t);

    for (unsigned i = 0; i < plan->n_listed; i++) {
        uint16_t offset;

        memcpy(&offset, offsets + i * sizeof(offset), sizeof(offset));
        list[i] = params + offset;
    }
    return plan->n_listed ? list : NULL;
}

void cuda_ops_nothing(struct cuda_launch *ret_launch)
{
    /* Steps of 1, since the kernel reads an operand of step 0 even if the count is 0. */
    const struct cuda_ops_vector nothing = {.count = 0, .a_step = 1, .b_step = 1};

    cuda_ops_set_launch(ret_launch, "kops_square_f32_vector", "vector", 1, &nothing, sizeof(nothing));
}

void cuda_ops_gate(struct cuda_launch *ret_launch, uint64_t go, uint64_t value, uint64_t most_ns)
{
    const struct cuda_ops_gate gate = {.go = go, .value = value, .most_ns = most_ns};

    cuda_ops_set_launch(ret_launch, "kops_gate", "gate", 1, &gate, sizeof(gate));
    ret_launch->block[0] = 1;
}

void cuda_ops_stamp(struct cuda_launch *launch, uint64_t times, uint64_t count)
{
    const unsigned grid = launch->grid[0];
    const struct cuda_ops_stamps stamps = {
        .times = times,
        .count = count,
        .counting = !times                         ? 0
                    : grid < CUDA_OPS_COUNTING_MAX ? grid
                                                   : CUDA_OPS_COUNTING_MAX,
    };

    memcpy(launch->params, &stamps, sizeof(stamps));
}
