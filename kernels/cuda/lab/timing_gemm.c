/* Arithmetic rate of the gemm kernels. */
#include <stdio.h>
#include <string.h>

#include "core/op.h"
#include "ops/params.h"
#include "ops/plan_launch.h"
#include "timing.h"

enum { REPEAT = 7 };

static struct plan gemm_plan(enum dtype dtype, int64_t m, int64_t n, int64_t k, bool a_turned, bool b_turned)
{
    struct plan plan = {.kind = PLAN_GEMM,
                        .out_dtype = dtype,
                        .dtype = dtype,
                        .gemm = {.m = m, .n = n, .k = k, .batch_count = 1, .alpha = 1, .high_precision_only = true}};

    plan.gemm.a = (struct plan_matrix){a_turned ? 1 : k, a_turned ? m : 1, {0}};
    plan.gemm.b = (struct plan_matrix){b_turned ? 1 : n, b_turned ? k : 1, {0}};
    plan.gemm.out = (struct plan_matrix){n, 1, {0}};
    return plan;
}

static int report(struct lab_gpu *gpu, const struct cuda_launch *launch, const struct plan *plan, const char *what)
{
    const struct plan_gemm *g = &plan->gemm;
    const double us = lab_gpu_time(gpu, launch, REPEAT);

    if (us < 0)
        return -1;
    printf("%-40s %-14s %5lldx%lldx%-6lld %10.1f us %8.2f TFLOP/s\n", launch->kernel, what, (long long)g->m,
           (long long)g->n, (long long)g->k, us, 2e-6 * (double)g->m * (double)g->n * (double)g->k / us);
    return 0;
}

static int prepare(struct lab_gpu *gpu, const struct plan *plan, const uint64_t buffers[3],
                   struct cuda_launch *ret_launch)
{
    struct error e;

    if (cuda_ops_launch(OP_GEMM, plan, buffers, NULL, &lab_gpu_machine(gpu)->device, ret_launch, &e) < 0) {
        fprintf(stderr, "%s\n", e.message);
        return -1;
    }
    return 0;
}

/* The launcher's choice and every other tile, in all four orientations at the largest size. */
static int time_own(struct lab_gpu *gpu, const uint64_t buffers[3], enum dtype dtype)
{
    static const int64_t sizes[] = {256, 512, 1024, 2048, 4096, 8192};
    static const char *const orientations[] = {"nn", "nt", "tn", "tt"};
    struct cuda_ops_gemm p;
    struct cuda_launch launch;

    for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const struct plan plan = gemm_plan(dtype, sizes[s], sizes[s], sizes[s], false, false);

        if (prepare(gpu, &plan, buffers, &launch) < 0 || report(gpu, &launch, &plan, "chosen") < 0)
            return -1;
        memcpy(&p, launch.params, sizeof(p));
        for (unsigned i = 0; i < CUDA_OPS_GEMM_CONFIGS && sizes[s] < 8192; i++) {
            cuda_ops_set_gemm(&launch, &p, &cuda_ops_gemm_configs(dtype)[i], true);
            if (report(gpu, &launch, &plan, "nn") < 0)
                return -1;
        }
    }
    for (unsigned o = 1; o < 4; o++) {
        const struct plan plan = gemm_plan(dtype, 4096, 4096, 4096, o & 2, o & 1);

        if (prepare(gpu, &plan, buffers, &launch) < 0 || report(gpu, &launch, &plan, orientations[o]) < 0)
            return -1;
    }
    for (unsigned o = 0; o < 4; o++) {
        const struct plan plan = gemm_plan(dtype, 4097, 4097, 4097, o & 2, o & 1);

        if (prepare(gpu, &plan, buffers, &launch) < 0 || report(gpu, &launch, &plan, orientations[o]) < 0)
            return -1;
    }
    return 0;
}

static const struct {
    enum dtype dtype;
    struct cuda_ops_gemm_config config;
} candidates[] = {
    {DTYPE_F32, {128, 128, 0, "kops_gemm_lab_f32_128x128x8_8x8_2", NULL}},
    {DTYPE_F32, {128, 128, 0, "kops_gemm_lab_f32_128x128x16_8x8_1", NULL}},
    {DTYPE_F32, {256, 128, 0, "kops_gemm_lab_f32_256x128x8_16x8_1", NULL}},
    {DTYPE_F32, {128, 256, 0, "kops_gemm_lab_f32_128x256x8_8x16_1", NULL}},
    {DTYPE_F32, {128, 64, 0, "kops_gemm_lab_f32_128x64x16_8x4_2", NULL}},
    {DTYPE_F32, {128, 64, 0, "kops_gemm_lab_f32_128x64x16_8x4_3", NULL}},
    {DTYPE_F64, {128, 128, 0, "kops_gemm_lab_f64_128x128x8_8x8_1", NULL}},
    {DTYPE_F64, {64, 64, 0, "kops_gemm_lab_f64_64x64x16_4x4_2", NULL}},
    {DTYPE_F16, {128, 128, 0, "kops_gemm_lab_f16_128x128x32_64x32_1", NULL}},
    {DTYPE_F16, {128, 256, 0, "kops_gemm_lab_f16_128x256x16_64x64_1", NULL}},
    {DTYPE_F16, {128, 64, 0, "kops_gemm_lab_f16_128x64x32_32x32_2", NULL}},
};

static int time_candidates(struct lab_gpu *gpu, const uint64_t buffers[3], enum dtype dtype)
{
    static const int64_t sizes[] = {1024, 4096};

    for (unsigned i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++) {
        for (unsigned s = 0; s < 2 && candidates[i].dtype == dtype; s++) {
            const struct plan plan = gemm_plan(dtype, sizes[s], sizes[s], sizes[s], false, false);
            struct cuda_launch launch;
            struct cuda_ops_gemm p;

            if (prepare(gpu, &plan, buffers, &launch) < 0)
                return -1;
            memcpy(&p, launch.params, sizeof(p));
            cuda_ops_set_gemm(&launch, &p, &candidates[i].config, true);
            if (report(gpu, &launch, &plan, "nn") < 0)
                return -1;
        }
    }
    return 0;
}

int time_gemm(struct lab_gpu *gpu, const uint64_t buffers[3])
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16};

    printf("\n== gemm (n: as stored, t: transposed)\n");
    for (unsigned d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        if (time_own(gpu, buffers, dtypes[d]) < 0 || time_candidates(gpu, buffers, dtypes[d]) < 0)
            return -1;
    }
    return 0;
}
