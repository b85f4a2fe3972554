/* Describes, loads and closes the kernels of one device; owns the names of variants. */
#include "kernels.h"

#include <stdio.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "driver/device.h"
#include "ops/launch.h"
#include "ops/limits.h"
#include "proto/generated/cuda_ops_layout.h"
#include "repack_sketch.h"
#include "user_kernel.h"
#include "work.h"

static int attribute(const void *device, int which)
{
    return cuda_device_attribute(device, (CUdevice_attribute)which);
}

static void find_limits(const struct cuda_device *d, struct kernel_limits *ret_limits)
{
    const struct cuda_limits_driver driver = {.attributes = CUDA_HAS(LaunchKernelEx),
                                              .occupancy = CUDA_HAS(OccupancyMaxActiveBlocksPerMultiprocessor) &&
                                                           CUDA_HAS(OccupancyMaxActiveClusters),
                                              .maps = cuda.TensorMapEncodeTiled != NULL};

    cuda_limits_of(attribute, d, driver, ret_limits);
}

/* ---- variants ---- */

const char cuda_variant_blaslt[] = "cublaslt";

static void init_one(const char **names, enum op_id op, enum dtype dtype, enum cuda_ops_level level, bool have_blaslt,
                     bool have_copies)
{
    const char *const *own = cuda_ops_variants(op, dtype, level), *const *repacked = repack_variants(op, dtype);
    unsigned n = 0;

    if (!own)
        return;
    if ((op == OP_GEMM || op == OP_LINEAR || op == OP_SCALED_GEMM) && have_blaslt)
        names[n++] = cuda_variant_blaslt;
    for (; have_blaslt && *repacked; repacked++)
        if (have_copies || strcmp(*repacked, repack_activated) == 0)
            names[n++] = *repacked;
    while (*own)
        names[n++] = *own++;
    if (op == OP_COPY)
        names[n++] = cuda_variant_transfer;
}

static void init_variants(struct cuda_variants *v, enum cuda_ops_level level, bool have_blaslt, bool have_copies)
{
    memset(v, 0, sizeof(*v));
    for (unsigned op = 0; op < OP_COUNT; op++) {
#define X(NAME, name, value, size)                                                                                     \
    init_one(v->names[op][DTYPE_##NAME], (enum op_id)op, DTYPE_##NAME, level, have_blaslt, have_copies);
        KOPS_DTYPES(X)
#undef X
    }
}

const char *const *cuda_variants_find(const struct cuda_variants *v, const struct op *op, enum dtype dtype)
{
    const char *const *names = v->names[op->id][dtype];

    return names[0] ? names : NULL;
}

const char *cuda_variants_nominal(const struct cuda_variants *v, const struct step *step)
{
    if (step->plan.kind == PLAN_KERNEL)
        return cuda_variant_user;
    return step_variant(step) ? step_variant(step) : v->names[(enum op_id)step->op][step->plan.dtype][0];
}

/* ---- choices of the tuning ---- */

void cuda_tuned_machine(const struct cuda_kernels *k, char *into, size_t size)
{
    const struct backend_device_info *info = &k->device->base.info;
    const size_t blaslt = k->blaslt ? blaslt_version() : 0;
    int driver = 0;

    if (cuda.DriverGetVersion)
        cuda.DriverGetVersion(&driver);
    snprintf(into, size, "%.64s %s, %u multiprocessors; driver %d.%d; cublaslt %zu; kernels %s-%llx", info->name,
             info->arch, info->compute_units, driver / 1000, driver % 1000 / 10, blaslt, KOPS_VERSION,
             (unsigned long long)CUDA_OPS_LAYOUT);
}

static uint64_t machine_of(const struct cuda_kernels *k, bool may_block)
{
    uint64_t machine = atomic_load_explicit(&k->machine, memory_order_relaxed);
    char text[TUNING_TEXT_BYTES * 2] = "";

    if (machine || !may_block)
        return machine;
    cuda_tuned_machine(k, text, sizeof(text));
    machine = tuning_hash(text, strlen(text));
    /* All threads write the same value here. */
    atomic_store_explicit((atomic_ullong *)(uintptr_t)&k->machine, machine, memory_order_relaxed);
    return machine;
}

int cuda_tuned_key(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                   struct tuning_key *ret, struct error *e)
{
    if (plan->kind != PLAN_GEMM || plan_is_empty(plan))
        return error_set(e, ERROR_UNSUPPORTED, "there is nothing to tune: one kernel serves this op");
    ret->machine = machine_of(k, true);
    if (blaslt_problem_of(plan, addresses, ret->problem, e) == 0)
        return 0;
    return error_set(
        e, ERROR_UNSUPPORTED,
        "there is nothing to tune: kernels compete only for products that cuBLASLt could run, not where a "
        "matrix has no stride of 1 along rows or columns, nothing is added up (k is 0), or the batches would "
        "need more than 16 small calls of it, or 256");
}

bool cuda_tuned_is_known(const struct cuda_kernels *k, bool may_block)
{
    return !tuning_table_generation(k->tuning) || machine_of(k, may_block);
}

bool cuda_tuned_find(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses, bool may_block,
                     struct tuning_choice *ret)
{
    struct tuning_key key;
    struct error ignored;

    if (!tuning_table_generation(k->tuning) || plan->kind != PLAN_GEMM || plan_is_empty(plan))
        return false;
    key.machine = machine_of(k, may_block);
    if (!key.machine || blaslt_problem_of(plan, addresses, key.problem, &ignored) < 0)
        return false;
    return tuning_table_find(k->tuning, &key, ret);
}

/* ---- kernels ---- */

enum { WORKSPACE_BYTES = 32 << 20 /* as much as cuBLASLt's best algorithms use on the largest devices */ };

void cuda_kernels_describe(struct cuda_kernels *k, struct cuda_device *d, bool have_blaslt,
                           const struct backend_config *config)
{
    k->device = d;
    k->tuning = config->tuning;
    find_limits(d, &k->limits);
    if (d->has_pools)
        k->workspace_bytes = WORKSPACE_BYTES;
    k->blaslt = have_blaslt ? blaslt_new(d, k->workspace_bytes) : NULL;
    init_variants(&k->variants, cuda_embedded_device(&d->base.info).level, k->blaslt != NULL, d->repack_bytes != 0);
}

void cuda_kernels_close(struct cuda_kernels *k)
{
    k->blaslt = blaslt_free(k->blaslt);
    cuda_embedded_unload(k->device, &k->embedded);
}
