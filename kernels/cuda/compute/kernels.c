/* Describes, loads and closes the kernels of one device; owns the names of variants. */
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "blaslt/blaslt.h"
#include "driver/device.h"
#include "ops/launch.h"
#include "ops/limits.h"
#include "ops/params.h"
#include "proto/generated/cuda_ops_layout.h"
#include "repack_sketch.h"
#include "user_kernel.h"
#include "work.h"

/* ---- embedded kernels ---- */

struct cuda_embedded_kernel {
    const char *name; /* NULL: a free place of the table */
    CUfunction function;
};

static unsigned hash(const char *name)
{
    unsigned h = 2166136261U;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619U;
    return h;
}

static struct cuda_embedded_kernel *place(const struct cuda_embedded *k, const char *name)
{
    unsigned i = hash(name) & k->mask;

    while (k->table[i].name && k->table[i].name != name && strcmp(k->table[i].name, name) != 0)
        i = (i + 1) & k->mask;
    return &k->table[i];
}

static unsigned capability_of(const char *arch)
{
    const char *digits = strpbrk(arch, "0123456789");

    return digits ? (unsigned)strtoul(digits, NULL, 10) : 0;
}

struct cuda_ops_device cuda_embedded_device(const struct backend_device_info *info)
{
    struct cuda_ops_device device = {.multiprocessors = info->compute_units};

    device.level = cuda_ops_level_of(cuda_ops_architectures, capability_of(info->arch));
    /* Drivers before 12.0 have no tensor maps. The daemon's process has no driver where executors do the work. */
    if (device.level == CUDA_OPS_SM90A && cuda.Init && !cuda.TensorMapEncodeTiled)
        device.level = CUDA_OPS_SM90;
    return device;
}

static int load_kernel(const struct cuda_device *d, struct cuda_embedded *k, const struct cuda_ops_kernel *declared,
                       struct error *e)
{
    struct cuda_embedded_kernel *kernel = place(k, declared->name);

    if (CUDA_OPEN_CALL(d, e, ModuleGetFunction, &kernel->function, k->modules[declared->binary], declared->name) < 0)
        return -1;
    kernel->name = declared->name;
    if (declared->level == CUDA_OPS_SM90A &&
        CUDA_OPEN_CALL(d, e, FuncSetAttribute, kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                       CUDA_OPS_MAPPED_SHARED_MAX) < 0)
        return -1;
    /* FuncLoad loads the function now even if the environment asks for lazy loading. */
    return CUDA_HAS(FuncLoad) ? CUDA_OPEN_CALL(d, e, FuncLoad, kernel->function) : 0;
}

static int find_counts(const struct cuda_device *d, struct cuda_embedded *k, struct error *e)
{
    size_t bytes;
    unsigned i = 0;

    while (strcmp(cuda_ops_binaries[i].name, "stamp") != 0)
        i++;
    return CUDA_OPEN_CALL(d, e, ModuleGetGlobal, &k->stamp_counts, &bytes, k->modules[i], "kops_stamp_counts");
}

int cuda_embedded_load(const struct cuda_device *d, struct cuda_embedded *k, struct error *e)
{
    const enum cuda_ops_level level = cuda_embedded_device(&d->base.info).level;
    unsigned count = 0, places = 16;

    *k = (struct cuda_embedded){0};
    while (cuda_ops_kernels[count].name)
        count++;
    while (places < 2 * count)
        places *= 2;
    k->mask = places - 1;
    k->table = calloc(places, sizeof(*k->table));
    k->modules = calloc(cuda_ops_binary_count, sizeof(CUmodule));
    if (!k->table || !k->modules) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the table of kernels");
        goto unload;
    }
    for (; k->n_modules < cuda_ops_binary_count; k->n_modules++)
        if (CUDA_OPEN_CALL(d, e, ModuleLoadData, &k->modules[k->n_modules], cuda_ops_binaries[k->n_modules].data) < 0)
            goto unload;
    for (unsigned i = 0; i < count; i++)
        if (cuda_ops_kernels[i].level <= level && load_kernel(d, k, &cuda_ops_kernels[i], e) < 0)
            goto unload;
    if (find_counts(d, k, e) < 0)
        goto unload;
    return 0;

unload:
    cuda_embedded_unload(d, k);
    return -1;
}

void cuda_embedded_unload(const struct cuda_device *d, struct cuda_embedded *k)
{
    while (k->n_modules > 0)
        cuda_on(d)->ModuleUnload(k->modules[--k->n_modules]);
    free(k->modules);
    free(k->table);
    *k = (struct cuda_embedded){0};
}

CUfunction cuda_embedded_find(const struct cuda_embedded *k, const char *name)
{
    return place(k, name)->function;
}

int cuda_embedded_get(const struct cuda_embedded *k, const char *name, CUfunction *ret, struct error *e)
{
    *ret = cuda_embedded_find(k, name);
    return *ret ? 0 : error_set(e, ERROR_INTERNAL, "no embedded binary has the kernel %s", name);
}

bool cuda_embedded_image(const char *name, size_t length, struct backend_image *ret_image)
{
    for (unsigned i = 0; i < cuda_ops_binary_count; i++) {
        const struct cuda_ops_binary *b = &cuda_ops_binaries[i];

        if (strlen(b->name) != length || memcmp(b->name, name, length) != 0)
            continue;
        *ret_image = (struct backend_image){.data = b->data, .size = b->size, .layout = CUDA_OPS_LAYOUT};
        return true;
    }
    return false;
}

int cuda_embedded_encoder(void *map, int type, unsigned rank, void *address, const uint64_t *extents,
                          const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                          int swizzle, int promotion, int fill)
{
    return (int)cuda.TensorMapEncodeTiled(map, (CUtensorMapDataType)type, rank, address, extents, strides, box, steps,
                                          (CUtensorMapInterleave)interleave, (CUtensorMapSwizzle)swizzle,
                                          (CUtensorMapL2promotion)promotion, (CUtensorMapFloatOOBfill)fill);
}

int cuda_embedded_encode(struct cuda_launch *l, struct error *e)
{
    return cuda_check(NULL, (CUresult)cuda_ops_encode(l, cuda_embedded_encoder), "cuTensorMapEncodeTiled", e);
}

int cuda_embedded_launch(const struct cuda_queue *q, CUfunction function, struct cuda_launch *l, struct error *e)
{
    void *params[] = {l->params};

    return CUDA_CALL(q->device, e, LaunchKernel, function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
                     l->block[2], l->shared_bytes, q->stream, params, NULL);
}

/* ---- limits ---- */

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
