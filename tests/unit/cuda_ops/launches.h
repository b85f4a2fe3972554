/* For the tests of the launcher. */
#ifndef KOPS_TESTS_LAUNCHES_H
#define KOPS_TESTS_LAUNCHES_H

#include "ops/launch.h"
#include "ops/params.h"
#include "ops/plan_launch.h"
#include "tests/support/unit.h"

static const struct cuda_ops_device device = {.multiprocessors = 132, .level = CUDA_OPS_SM90A};

/* Of the operands, in order. */
static const uint64_t addresses[] = {0x10000, 0x20000, 0x30000, 0x40000, 0x50000};

/* A function that gives a launch's parameters. */
#define PARAMS_OF(function, type)                                                                                      \
    static struct type function(const struct cuda_launch *launch)                                                      \
    {                                                                                                                  \
        struct type p;                                                                                                 \
                                                                                                                       \
        assert_int_equal(launch->params_size, sizeof(p));                                                              \
        memcpy(&p, launch->params, sizeof(p));                                                                         \
        return p;                                                                                                      \
    }

static inline struct plan product(enum dtype dtype, int64_t m, int64_t n, int64_t k)
{
    return (struct plan){.kind = PLAN_GEMM,
                         .dtype = dtype,
                         .out_dtype = dtype,
                         .gemm = {.m = m,
                                  .n = n,
                                  .k = k,
                                  .batch_count = 1,
                                  .a = {.row = k, .column = 1},
                                  .b = {.row = n, .column = 1},
                                  .out = {.row = n, .column = 1},
                                  .alpha = 2,
                                  .beta = 3,
                                  .high_precision_only = true}};
}

static inline struct cuda_launch launch_of(enum op_id op, const struct plan *plan, const uint64_t *at,
                                           const char *variant)
{
    struct cuda_launch launch;
    unsigned threads = 256;

    MUST(cuda_ops_launch(op, plan, at, variant, &device, &launch, &e));
    assert_true(launch.grid[0] >= 1 && launch.grid[1] == 1 && launch.grid[2] == 1);
    if (launch.n_maps)
        threads = CUDA_OPS_MAPPED_THREADS;
    else if (strcmp(launch.variant, "skinny") == 0)
        threads = CUDA_OPS_SKINNY_THREADS;
    else if (strstr(launch.kernel, "_tf32_small"))
        threads = CUDA_OPS_SMALL_MMA_THREADS;
    else if (strcmp(launch.variant, "rows") == 0)
        threads = CUDA_OPS_ROW_THREADS;
    if (strstr(launch.kernel, "_plain"))
        assert_true(launch.block[0] <= CUDA_OPS_PLAIN_THREADS);
    else
        assert_int_equal(launch.block[0], threads);
    return launch;
}

#endif
