/* What the launcher chooses: kernels, grids, parameters; no kernel is run. */
#include "launches.h"
#include "tests/support/unit.h"

/* An elementwise plan of rank 1 with these strides, inputs first. */
static struct plan flat(enum dtype dtype, uint64_t count, int64_t a, int64_t b, int64_t out)
{
    return (struct plan){
        .kind = PLAN_ELEMENTWISE,
        .dtype = dtype,
        .elementwise = {.rank = 1, .shape = {(int64_t)count}, .strides = {{a}, {b}, {out}}, .count = count}};
}

PARAMS_OF(strided_of, cuda_ops_strided)

/* ---- elementwise ---- */

TEST(grids_cover_the_work_and_stay_in_bounds)
{
    struct plan plan = flat(DTYPE_F32, 1024, 1, 1, 1);

    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, "strided").grid[0], 1);
    plan = flat(DTYPE_F32, 1025, 1, 1, 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], 2);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, "strided").grid[0], 2);
    /* A thread takes a pack of 16 bytes, however many elements it is. */
    plan = flat(DTYPE_F64, ((uint64_t)1 << 33) + 1, 1, 1, 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], ((uint64_t)1 << 22) + 1);
    plan = flat(DTYPE_F16, (uint64_t)1 << 33, 1, 1, 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], 1 << 20);
    plan = flat(DTYPE_F64, (uint64_t)1 << 46, 1, 1, 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], 0x7fffffff);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, "strided").grid[0], 0x7fffffff);
}

TEST(blocks_are_as_large_as_the_tensor_wants)
{
    static const struct {
        enum op_id op;
        enum dtype dtype;
        uint64_t bytes;
        unsigned threads;
    } cases[] = {{OP_ADD, DTYPE_F32, 1 << 20, 256},     {OP_ADD, DTYPE_F32, 32 << 20, 1024},
                 {OP_ADD, DTYPE_BF16, 32 << 20, 1024},  {OP_ADD_SQUARE, DTYPE_F64, 32 << 20, 1024},
                 {OP_ADD, DTYPE_I8, 32 << 20, 256},     {OP_SQUARE, DTYPE_F32, 1 << 20, 256},
                 {OP_SQUARE, DTYPE_F16, 32 << 20, 128}, {OP_SQUARE, DTYPE_U8, 32 << 20, 256}};
    const struct cuda_ops_device others = {.multiprocessors = 132, .level = CUDA_OPS_SM90};
    const uint64_t odd[] = {0x10008, 0x20000, 0x30000};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint64_t count = cases[i].bytes / dtype_size(cases[i].dtype);
        const struct plan plan = flat(cases[i].dtype, count, 1, 1, 1);
        struct cuda_launch launch = launch_of(cases[i].op, &plan, addresses, NULL);

        assert_int_equal(launch.block[0], cases[i].threads);
        assert_int_equal(launch.grid[0] * launch.block[0], cases[i].bytes / 16);
        MUST(cuda_ops_launch(cases[i].op, &plan, addresses, NULL, &others, &launch, &e));
        assert_int_equal(launch.block[0], 256);
        assert_int_equal(launch_of(cases[i].op, &plan, odd, NULL).block[0], 256);
    }
}

/* A plain kernel needs addresses on 16-byte boundaries, and steps of 1. */
TEST(plain_kernels_take_what_is_plain)
{
    static const struct {
        enum op_id op;
        uint64_t addresses[3];
        int64_t a_step, b_step;
        bool plain;
    } cases[] = {{OP_ADD, {0x10000, 0x20000, 0x30000}, 1, 1, true},  {OP_ADD, {0x10004, 0x20000, 0x30000}, 1, 1, false},
                 {OP_ADD, {0x10000, 0x20008, 0x30000}, 1, 1, false}, {OP_ADD, {0x10000, 0x20000, 0x30008}, 1, 1, false},
                 {OP_ADD, {0x10000, 0x20000, 0x30000}, 0, 1, false}, {OP_ADD, {0x10000, 0x20000, 0x30000}, 1, 0, false},
                 {OP_SQUARE, {0x10000, 0x20000}, 1, 1, true},        {OP_SQUARE, {0x10000, 0x20004}, 1, 1, false}};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct plan plan = flat(DTYPE_F32, 1000, cases[i].a_step, cases[i].b_step, 1);
        const struct cuda_launch launch = launch_of(cases[i].op, &plan, cases[i].addresses, NULL);

        assert_string_equal(launch.variant, "vector");
        assert_int_equal(strstr(launch.kernel, "_plain") != NULL, cases[i].plain);
    }
}

TEST(counts_and_offsets_from_2_31_on_take_64_bits)
{
    const uint64_t limit = (uint64_t)1 << 31;
    struct plan plan = flat(DTYPE_F16, limit - 1, 1, 1, 1);

    assert_string_equal(launch_of(OP_ADD, &plan, addresses, "strided").kernel, "kops_add_f16_strided");
    plan = flat(DTYPE_F16, limit, 1, 1, 1);
    assert_string_equal(launch_of(OP_ADD, &plan, addresses, "strided").kernel, "kops_add_f16_strided64");
    /* Few elements, far apart. */
    plan = flat(DTYPE_F16, 3, 1, (int64_t)limit / 2 - 1, 1);
    assert_string_equal(launch_of(OP_ADD, &plan, addresses, NULL).kernel, "kops_add_f16_strided");
    plan = flat(DTYPE_F16, 3, 1, (int64_t)limit / 2, 1);
    assert_string_equal(launch_of(OP_ADD, &plan, addresses, NULL).kernel, "kops_add_f16_strided64");
}

TEST(dividers_divide)
{
    static const uint64_t divisors[] = {1, 2, 3, 5, 7, 10, 641, 65535, 65536, 0x40000001, 0x7fffffff};

    for (unsigned i = 0; i < sizeof(divisors) / sizeof(divisors[0]); i++) {
        const struct cuda_ops_divider narrow = cuda_ops_divider(divisors[i], false);
        const struct cuda_ops_divider wide = cuda_ops_divider(divisors[i] << 31 | 1, true);
        const uint64_t d = divisors[i] << 31 | 1;

        for (unsigned j = 0; j < 2000; j++) {
            /* Around multiples of the divisor, up to the end of the range. */
            const uint64_t multiple = j % 2 ? 0x7fffffff / divisors[i] * divisors[i] : j / 4 * divisors[i];
            const uint32_t n = (uint32_t)((multiple + 0x80000000U - j % 3) % 0x80000000U);
            const uint64_t m = ((uint64_t)INT64_MAX / d - j / 2) * d - j % 2;

            assert_int_equal((((uint64_t)n * (uint32_t)narrow.magic >> 32) + n) >> narrow.shift, n / divisors[i]);
            if (m > (uint64_t)INT64_MAX)
                continue;
            assert_int_equal(((uint64_t)((unsigned __int128)m * wide.magic >> 64) + m) >> wide.shift, m / d);
        }
    }
}

/* A matrix plan of 96 · 64 elements with these strides. */
static struct plan matrix(enum dtype dtype, const int64_t strides[3][2])
{
    struct plan plan = {
        .kind = PLAN_ELEMENTWISE, .dtype = dtype, .elementwise = {.rank = 2, .shape = {96, 64}, .count = 96 * 64}};

    memcpy(plan.elementwise.strides[0], strides[0], sizeof(strides[0]));
    memcpy(plan.elementwise.strides[1], strides[1], sizeof(strides[1]));
    memcpy(plan.elementwise.strides[2], strides[2], sizeof(strides[2]));
    return plan;
}

TEST(contiguous_rows_are_taken_in_pieces)
{
    static const int64_t even[3][2] = {{64, 1}, {0, 1}, {72, 1}}, odd[3][2] = {{64, 1}, {1, 0}, {65, 1}};
    const uint64_t shifted[] = {0x10004, 0x20000, 0x30000};
    struct plan plan = matrix(DTYPE_F32, even);
    struct cuda_launch launch = launch_of(OP_ADD, &plan, shifted, NULL);
    struct cuda_ops_strided p = strided_of(&launch);

    assert_string_equal(launch.kernel, "kops_add_f32_rows");
    assert_string_equal(launch.variant, "rows");
    assert_int_equal(p.pieces.divisor, 8); /* every row of out begins at a boundary; a thread takes two pieces */
    assert_int_equal(p.work, 8 * 96);
    assert_int_equal(launch.grid[0], 8 * 96 / CUDA_OPS_ROW_THREADS);
    plan = matrix(DTYPE_F64, even);
    launch = launch_of(OP_ADD, &plan, shifted, "rows");
    assert_int_equal(strided_of(&launch).pieces.divisor, 8); /* of 8 bytes an element four */
    plan = matrix(DTYPE_F32, odd);
    launch = launch_of(OP_ADD, &plan, shifted, NULL);
    assert_string_equal(launch.kernel, "kops_add_f32_rows");
    assert_int_equal(strided_of(&launch).pieces.divisor, 9);
    /* Rows of few bytes. */
    plan = matrix(DTYPE_I8, even);
    plan.elementwise.shape[1] = 31;
    plan.elementwise.count = 96 * 31;
    launch = launch_of(OP_ADD, &plan, shifted, NULL);
    assert_string_equal(launch.kernel, "kops_add_u8_strided");
}

TEST(a_transposed_input_is_turned_in_tiles)
{
    static const int64_t one[3][2] = {{64, 1}, {1, 96}, {64, 1}}, both[3][2] = {{1, 96}, {1, 100}, {64, 1}};
    static const int64_t other[3][2] = {{64, 2}, {1, 96}, {64, 1}};
    struct plan plan = matrix(DTYPE_F32, one);
    struct cuda_launch launch = launch_of(OP_ADD, &plan, addresses, NULL);
    struct cuda_ops_strided p = strided_of(&launch);

    assert_string_equal(launch.kernel, "kops_add_f32_tiles");
    assert_string_equal(launch.variant, "tiles");
    assert_int_equal(p.turned, 2);
    assert_int_equal(p.work, 2);
    assert_int_equal(p.pieces.divisor, 1);
    assert_int_equal(p.pieces_down.divisor, 2);
    plan = matrix(DTYPE_F64, both);
    launch = launch_of(OP_ADD, &plan, addresses, NULL);
    assert_string_equal(launch.kernel, "kops_add_f64_tiles");
    assert_int_equal(strided_of(&launch).turned, 3);
    assert_int_equal(launch.grid[0], 6);
    plan = matrix(DTYPE_F64, other);
    assert_string_equal(launch_of(OP_ADD, &plan, addresses, NULL).kernel, "kops_add_f64_strided");
    /* The dimension along which the input is contiguous need not be the next one. */
    plan = (struct plan){
        .kind = PLAN_ELEMENTWISE,
        .dtype = DTYPE_F32,
        .elementwise = {
            .rank = 3, .shape = {40, 3, 50}, .strides = {{1, 40, 120}, {0}, {150, 50, 1}}, .count = 40 * 3 * 50}};
    memcpy(plan.elementwise.strides[1], plan.elementwise.strides[2], sizeof(plan.elementwise.strides[1]));
    launch = launch_of(OP_SQUARE, &plan, addresses, NULL);
    assert_int_not_equal(launch.params_size, 0);
    assert_string_equal(launch.kernel, "kops_square_f32_tiles");
    p = strided_of(&launch);
    assert_int_equal(p.sizes[1].divisor, 40);
    assert_int_equal(p.sizes[2].divisor, 3);
    assert_int_equal(p.a_strides[1], 1);
    assert_int_equal(p.a_strides[2], 40);
}

TEST(a_variant_that_cannot_run_is_refused)
{
    const struct plan plan = flat(DTYPE_F32, 10, 2, 1, 1);
    struct cuda_launch launch = {.kernel = "untouched"};

    MUST_FAIL(cuda_ops_launch(OP_ADD, &plan, addresses, "vector", &device, &launch, &e), ERROR_INVALID_ARGUMENT, "");
    MUST_FAIL(cuda_ops_launch(OP_ADD, &plan, addresses, "blaslt", &device, &launch, &e), ERROR_INVALID_ARGUMENT, "");
    assert_string_equal(launch.kernel, "untouched");
}

TEST(every_variant_that_is_offered_runs)
{
    static const int64_t strides[2][3][2] = {{{1, 96}, {64, 1}}, {{64, 1}, {1, 96}, {64, 1}}}; /* by inputs */

    for (unsigned op = 0; op < OP_COUNT; op++) {
        const enum dtype dtype = op == OP_SCALED_GEMM ? DTYPE_F8_E4M3 : DTYPE_BF16;
        const char *const *variants = cuda_ops_variants((enum op_id)op, dtype, device.level);
        struct plan plan = flat(DTYPE_BF16, 10, 1, 1, 1);
        const struct plan turned = matrix(DTYPE_BF16, strides[op_get((enum op_id)op)->n_inputs > 1]);

        if (op == OP_GEMM || op == OP_LINEAR || op == OP_SCALED_GEMM) {
            plan = product(dtype, 16, 64, 64);
            plan.gemm.has_bias = op == OP_LINEAR;
            plan.gemm.has_scales = op == OP_SCALED_GEMM;
            plan.gemm.b_dtype = dtype;
        }
        assert_non_null(variants);
        for (; *variants; variants++)
            assert_string_equal(
                launch_of((enum op_id)op, strcmp(*variants, "tiles") ? &plan : &turned, addresses, *variants).variant,
                *variants);
    }
}

TEST(copies_go_by_element_size)
{
    const struct plan_elementwise plan = {.rank = 1, .shape = {5}, .strides = {{2}, {3}}, .count = 5};
    struct cuda_launch launch;
    struct cuda_ops_strided p;

    MUST(cuda_ops_copy(&plan, 4, 0x1000, 0x2000, &launch, &e));
    assert_string_equal(launch.kernel, "kops_copy_4_strided");
    p = strided_of(&launch);
    assert_int_equal(p.a, 0x1000);
    assert_int_equal(p.out, 0x2000);
    assert_int_equal(p.a_strides[0], 2);
    assert_int_equal(p.out_strides[0], 3);
    MUST_FAIL(cuda_ops_copy(&plan, 3, 0x1000, 0x2000, &launch, &e), ERROR_UNSUPPORTED, "");
}
