/* Bandwidth of add and square on tensors of 1 GiB. */
#include <stdio.h>

#include "core/op.h"
#include "ops/params.h"
#include "timing.h"

enum { REPEAT = 20 };

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16};

/* Bytes that the op must move, over the time. */
static double gigabytes_per_second(unsigned tensors, size_t bytes, double us)
{
    return (double)tensors * (double)bytes / us * 1e-3;
}

static struct plan flat_plan(enum dtype dtype, size_t bytes)
{
    const uint64_t count = bytes / dtype_size(dtype);

    return (struct plan){
        .kind = PLAN_ELEMENTWISE,
        .dtype = dtype,
        .elementwise =
            {.rank = 1, .shape = {(int64_t)count}, .strides = {{1}, {1}, {1}}, .count = count, .contiguous = true},
    };
}

static int plan_launch(struct lab_gpu *gpu, enum op_id op, const struct plan *plan, const uint64_t buffers[3],
                       const char *variant, struct cuda_launch *ret_launch)
{
    const uint64_t addresses[] = {buffers[0], op == OP_SQUARE ? buffers[2] : buffers[1], buffers[2]};
    struct error e;

    if (cuda_ops_launch(op, plan, addresses, variant, &lab_gpu_machine(gpu)->device, ret_launch, &e) < 0) {
        fprintf(stderr, "%s\n", e.message);
        return -1;
    }
    return 0;
}

static void report(const char *kernel, const char *what, unsigned tensors, size_t bytes, double us)
{
    printf("%-28s %-34s %9.1f us %8.0f GB/s\n", kernel, what, us, gigabytes_per_second(tensors, bytes, us));
}

/* Candidates: block size and packs a thread; hints are in the name. */
static const struct candidate {
    const char *suffix;
    unsigned block, unroll;
} candidates[] = {
    {"256_1_dd", 256, 1}, {"128_1_dd", 128, 1}, {"512_1_dd", 512, 1}, {"1024_1_dd", 1024, 1}, {"128_2_dd", 128, 2},
    {"256_2_dd", 256, 2}, {"512_2_dd", 512, 2}, {"256_4_dd", 256, 4}, {"128_4_dd", 128, 4},   {"256_1_ss", 256, 1},
    {"256_1_ds", 256, 1}, {"256_1_sd", 256, 1}, {"256_2_ss", 256, 2}, {"256_2_ds", 256, 2},   {"512_1_ds", 512, 1},
    {"128_4_ss", 128, 4}, {"256_1_nd", 256, 1}, {"256_1_ns", 256, 1}, {"256_1_pd", 256, 1},   {"256_1_ps", 256, 1},
    {"256_2_ns", 256, 2}, {"512_1_ns", 512, 1},
};

/* One tile a block, or as many blocks as run at once (times `waves`), each looping. */
static int time_grids(struct lab_gpu *gpu, const struct cuda_launch *base, unsigned tensors)
{
    static const unsigned all_waves[] = {0, 1, 2, 8};
    const unsigned multiprocessors = lab_gpu_machine(gpu)->device.multiprocessors;
    struct cuda_launch launch = *base;

    for (unsigned i = 0; i < sizeof(all_waves) / sizeof(all_waves[0]); i++) {
        char what[64] = "one tile a block";
        double us;

        if (all_waves[i]) {
            launch.grid[0] = lab_gpu_occupancy(gpu, launch.kernel, launch.block[0]) * multiprocessors * all_waves[i];
            if (launch.grid[0] > base->grid[0])
                continue;
            snprintf(what, sizeof(what), "%u x resident blocks, looping", all_waves[i]);
        }
        us = lab_gpu_time(gpu, &launch, REPEAT);
        if (us < 0)
            return -1;
        report(launch.kernel, what, tensors, BUFFER_BYTES, us);
    }
    return 0;
}

static int time_candidates(struct lab_gpu *gpu, enum op_id op, const char *dtype, const struct cuda_launch *base,
                           unsigned tensors)
{
    for (unsigned i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++) {
        const struct candidate *c = &candidates[i];
        struct cuda_launch launch = *base;
        char name[64];
        double us;

        snprintf(name, sizeof(name), "lab_%s_%s_%s", op_get(op)->name, dtype, c->suffix);
        launch.kernel = name;
        launch.block[0] = c->block;
        launch.grid[0] = (unsigned)(BUFFER_BYTES / 16 / (c->block * c->unroll));
        us = lab_gpu_time(gpu, &launch, REPEAT);
        if (us < 0)
            return -1;
        report(launch.kernel, "one tile a block", tensors, BUFFER_BYTES, us);
    }
    return 0;
}

int time_elementwise(struct lab_gpu *gpu, const uint64_t buffers[3])
{
    static const enum op_id ops[] = {OP_ADD, OP_SQUARE};
    const double copy = lab_gpu_time_copy(gpu, buffers[2], buffers[0], BUFFER_BYTES, REPEAT);

    printf("\n== 1 GiB a tensor\n");
    if (copy < 0)
        return -1;
    report("driver's copy", "", 2, BUFFER_BYTES, copy);
    for (unsigned o = 0; o < 2; o++) {
        const unsigned tensors = ops[o] == OP_ADD ? 3 : 2;

        for (unsigned d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
            const struct plan plan = flat_plan(dtypes[d], BUFFER_BYTES);
            struct cuda_launch launch;

            if (plan_launch(gpu, ops[o], &plan, buffers, NULL, &launch) < 0 || time_grids(gpu, &launch, tensors) < 0)
                return -1;
            if ((dtypes[d] == DTYPE_F32 || dtypes[d] == DTYPE_F16) &&
                time_candidates(gpu, ops[o], dtype_name(dtypes[d]), &launch, tensors) < 0)
                return -1;
        }
    }
    return 0;
}

/* ---- layouts ---- */

enum { SIDE = 16384 }; /* f32 matrices of 1 GiB */

static struct plan matrix_plan(enum dtype dtype, int64_t rows, int64_t columns, const int64_t strides[3][2])
{
    struct plan plan = {.kind = PLAN_ELEMENTWISE,
                        .dtype = dtype,
                        .elementwise = {.rank = 2, .shape = {rows, columns}, .count = (uint64_t)(rows * columns)}};

    for (unsigned t = 0; t < 3; t++) {
        plan.elementwise.strides[t][0] = strides[t][0];
        plan.elementwise.strides[t][1] = strides[t][1];
    }
    return plan;
}

static int time_layout(struct lab_gpu *gpu, const uint64_t buffers[3], const char *what, const struct plan *plan,
                       const char *variant)
{
    struct cuda_launch launch;
    double us;

    if (plan_launch(gpu, OP_ADD, plan, buffers, variant, &launch) < 0)
        return -1;
    us = lab_gpu_time(gpu, &launch, REPEAT);
    if (us < 0)
        return -1;
    report(launch.kernel, what, 3, (size_t)plan->elementwise.count * dtype_size(plan->dtype), us);
    return 0;
}

int time_strided(struct lab_gpu *gpu, const uint64_t buffers[3])
{
    static const int64_t rows[3][2] = {{SIDE, 1}, {SIDE, 1}, {SIDE, 1}};
    static const int64_t turned[3][2] = {{SIDE, 1}, {1, SIDE}, {SIDE, 1}};
    static const int64_t row_repeated[3][2] = {{SIDE, 1}, {0, 1}, {SIDE, 1}};
    static const int64_t column_repeated[3][2] = {{SIDE, 1}, {1, 0}, {SIDE, 1}};
    const uint64_t shifted[3] = {buffers[0] + 4, buffers[1] + 8, buffers[2]};
    const struct plan flat = flat_plan(DTYPE_F32, BUFFER_BYTES / 2), flat_half = flat_plan(DTYPE_F16, BUFFER_BYTES / 2);
    struct plan scalar = flat, p;

    printf("\n== layouts (GB/s as if every element of three tensors moved)\n");
    scalar.elementwise.strides[1][0] = 0;
    if (time_layout(gpu, buffers, "contiguous, as strided", &flat, "strided") < 0 ||
        time_layout(gpu, buffers, "contiguous, as strided", &flat_half, "strided") < 0 ||
        time_layout(gpu, shifted, "misaligned differently", &flat, NULL) < 0 ||
        time_layout(gpu, shifted, "misaligned differently", &flat_half, NULL) < 0 ||
        time_layout(gpu, buffers, "b is a scalar", &scalar, NULL) < 0)
        return -1;
    for (unsigned d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        const int64_t side = SIDE / 2;

        p = matrix_plan(dtypes[d], side, side, rows);
        if (time_layout(gpu, buffers, "slices of wider rows", &p, NULL) < 0)
            return -1;
        p = matrix_plan(dtypes[d], side, side, row_repeated);
        if (time_layout(gpu, buffers, "b is one row", &p, NULL) < 0)
            return -1;
        p = matrix_plan(dtypes[d], side, side, column_repeated);
        if (time_layout(gpu, buffers, "b is one column", &p, NULL) < 0)
            return -1;
        p = matrix_plan(dtypes[d], side, side, turned);
        if (time_layout(gpu, buffers, "b is transposed", &p, NULL) < 0)
            return -1;
        p = matrix_plan(dtypes[d], side - 1, side - 1, turned);
        if (time_layout(gpu, buffers, "b is transposed, odd sizes", &p, NULL) < 0)
            return -1;
    }
    return 0;
}
