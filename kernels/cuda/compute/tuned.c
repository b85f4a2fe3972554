#include "tuned.h"

#include <stdio.h>
#include <string.h>

#include "blaslt/blaslt.h"
#include "driver/device.h"
#include "kernels.h"
#include "proto/generated/cuda_ops_layout.h"

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
    /* A cache: the same whoever writes it. */
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

bool cuda_tuned_find_algorithm(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                               bool may_block, struct tuning_choice *ret)
{
    return cuda_tuned_find(k, plan, addresses, may_block, ret) && ret->has_algorithm;
}
