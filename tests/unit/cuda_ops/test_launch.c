/* What the launcher chooses: kernels, grids, parameters; no kernel is run. */
#include "launches.h"

/* An elementwise plan of rank 1 with these strides, inputs first. */
static struct plan flat(enum dtype dtype, uint64_t count, int64_t a, int64_t b, int64_t out)
{
    return (struct plan){
        .kind = PLAN_ELEMENTWISE,
        .dtype = dtype,
        .elementwise = {.rank = 1, .shape = {(int64_t)count}, .strides = {{a}, {b}, {out}}, .count = count}};
}

static struct cuda_ops_vector vector_of(const struct cuda_launch *launch)
{
    struct cuda_ops_vector p;

    assert_int_equal(launch->params_size, sizeof(p));
    memcpy(&p, launch->params, sizeof(p));
    return p;
}

static struct cuda_ops_strided strided_of(const struct cuda_launch *launch)
{
    struct cuda_ops_strided p;

    assert_int_equal(launch->params_size, sizeof(p));
    memcpy(&p, launch->params, sizeof(p));
    return p;
}

/* ---- elementwise ---- */

static void contiguous_tensors_take_the_vector_kernel_of_their_dtype(void **state)
{
    static const struct {
        enum dtype dtype;
        const char *add, *square;
    } expected[] = {
        {DTYPE_F32, "kops_add_f32_vector", "kops_square_f32_vector"},
        {DTYPE_F64, "kops_add_f64_vector", "kops_square_f64_vector"},
        {DTYPE_F16, "kops_add_f16_vector", "kops_square_f16_vector"},
        {DTYPE_BF16, "kops_add_bf16_vector", "kops_square_bf16_vector"},
    };
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};

    (void)state;
    for (unsigned i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        const struct plan plan = flat(expected[i].dtype, 1000, 1, 1, 1);
        struct cuda_launch launch = launch_of(OP_ADD, &plan, addresses, NULL);

        assert_string_equal(launch.kernel, expected[i].add);
        assert_string_equal(launch.variant, "vector");
        assert_int_equal(vector_of(&launch).out, 0x30000);
        launch = launch_of(OP_SQUARE, &plan, addresses, NULL);
        assert_string_equal(launch.kernel, expected[i].square);
        assert_int_equal(vector_of(&launch).out, 0x20000);
        assert_int_equal(vector_of(&launch).b, 0);
    }
}

static void the_head_ends_where_out_is_aligned(void **state)
{
    const uint64_t together[] = {0x10004, 0x20004, 0x30004}, apart[] = {0x10004, 0x20008, 0x30004};
    const struct plan plan = flat(DTYPE_F32, 1000, 1, 1, 1), shorter = flat(DTYPE_F32, 2, 1, 1, 1);
    struct cuda_launch launch = launch_of(OP_ADD, &plan, together, NULL);
    struct cuda_ops_vector p = vector_of(&launch);

    (void)state;
    assert_int_equal(p.head, 3);
    assert_true(p.a_aligned && p.b_aligned);
    launch = launch_of(OP_ADD, &plan, apart, NULL);
    p = vector_of(&launch);
    assert_true(p.a_aligned && !p.b_aligned);
    launch = launch_of(OP_ADD, &shorter, together, NULL);
    assert_int_equal(vector_of(&launch).head, 2);
}

static void a_scalar_input_keeps_the_vector_kernel(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    const struct plan plan = flat(DTYPE_F16, 1000, 0, 1, 1);
    const struct cuda_launch launch = launch_of(OP_ADD, &plan, addresses, NULL);
    const struct cuda_ops_vector p = vector_of(&launch);

    (void)state;
    assert_string_equal(launch.variant, "vector");
    assert_int_equal(p.a_step, 0);
    assert_int_equal(p.b_step, 1);
}

static void grids_cover_the_work_and_stay_in_bounds(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    struct plan plan = flat(DTYPE_F32, 1024, 1, 1, 1);

    (void)state;
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, "strided").grid[0], 1);
    plan = flat(DTYPE_F32, 1025, 1, 1, 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], 2);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, "strided").grid[0], 2);
    /* A block takes 256 packs of 16 bytes, however many elements they are. */
    plan = flat(DTYPE_F64, ((uint64_t)1 << 33) + 1, 1, 1, 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], ((uint64_t)1 << 24) + 1);
    plan = flat(DTYPE_F16, (uint64_t)1 << 33, 1, 1, 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], 1 << 22);
    plan = flat(DTYPE_F64, (uint64_t)1 << 45, 1, 1, 1);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, NULL).grid[0], 0x7fffffff);
    assert_int_equal(launch_of(OP_ADD, &plan, addresses, "strided").grid[0], 0x7fffffff);
}

static void other_strides_take_the_strided_kernel(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    const struct plan plan = {
        .kind = PLAN_ELEMENTWISE,
        .dtype = DTYPE_F64,
        .elementwise = {.rank = 2, .shape = {5, 7}, .strides = {{7, 1}, {0, 2}, {9, 1}}, .count = 35}};
    const struct cuda_launch launch = launch_of(OP_ADD, &plan, addresses, NULL);
    const struct cuda_ops_strided p = strided_of(&launch);

    (void)state;
    assert_string_equal(launch.kernel, "kops_add_f64_strided");
    assert_string_equal(launch.variant, "strided");
    assert_int_equal(p.rank, 2);
    assert_int_equal(p.sizes[0].divisor, 7);
    assert_int_equal(p.sizes[1].divisor, 5);
    assert_int_equal(p.b_strides[0], 2);
    assert_int_equal(p.b_strides[1], 0);
    assert_int_equal(p.out_strides[1], 9);
}

static void counts_and_offsets_from_2_31_on_take_64_bits(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000}, limit = (uint64_t)1 << 31;
    struct plan plan = flat(DTYPE_F16, limit - 1, 1, 1, 1);

    (void)state;
    assert_string_equal(launch_of(OP_ADD, &plan, addresses, "strided").kernel, "kops_add_f16_strided");
    plan = flat(DTYPE_F16, limit, 1, 1, 1);
    assert_string_equal(launch_of(OP_ADD, &plan, addresses, "strided").kernel, "kops_add_f16_strided64");
    /* Few elements, far apart. */
    plan = flat(DTYPE_F16, 3, 1, (int64_t)limit / 2 - 1, 1);
    assert_string_equal(launch_of(OP_ADD, &plan, addresses, NULL).kernel, "kops_add_f16_strided");
    plan = flat(DTYPE_F16, 3, 1, (int64_t)limit / 2, 1);
    assert_string_equal(launch_of(OP_ADD, &plan, addresses, NULL).kernel, "kops_add_f16_strided64");
}

static void dividers_divide(void **state)
{
    static const uint64_t divisors[] = {1, 2, 3, 5, 7, 10, 641, 65535, 65536, 0x40000001, 0x7fffffff};

    (void)state;
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

static void a_transposed_input_is_walked_in_squares(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    struct plan plan = {
        .kind = PLAN_ELEMENTWISE,
        .dtype = DTYPE_F32,
        .elementwise = {.rank = 2, .shape = {96, 64}, .strides = {{64, 1}, {1, 96}, {64, 1}}, .count = 96 * 64}};
    struct cuda_launch launch = launch_of(OP_ADD, &plan, addresses, NULL);
    struct cuda_ops_strided p = strided_of(&launch);

    (void)state;
    assert_int_equal(p.rank, 4);
    assert_int_equal(p.sizes[0].divisor, 32);
    assert_int_equal(p.sizes[1].divisor, 32);
    assert_int_equal(p.out_strides[0], 1);
    assert_int_equal(p.b_strides[1], 1);
    assert_int_equal(p.sizes[0].divisor * p.sizes[1].divisor * p.sizes[2].divisor * p.sizes[3].divisor, 96 * 64);
    plan.elementwise.shape[0] = 97;
    plan.elementwise.count = 97 * 64;
    launch = launch_of(OP_ADD, &plan, addresses, NULL);
    assert_int_equal(strided_of(&launch).rank, 2);
}

static void a_variant_that_cannot_run_is_refused(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    const struct plan plan = flat(DTYPE_F32, 10, 2, 1, 1);
    struct cuda_launch launch = {.kernel = "untouched"};
    struct error e = {0};

    (void)state;
    assert_int_equal(cuda_ops_launch(OP_ADD, &plan, addresses, "vector", &device, &launch, &e), -1);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    assert_int_equal(cuda_ops_launch(OP_ADD, &plan, addresses, "blaslt", &device, &launch, &e), -1);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    assert_string_equal(launch.kernel, "untouched");
}

static void every_variant_that_is_offered_runs(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};

    (void)state;
    for (unsigned op = 0; op < OP_COUNT; op++) {
        const char *const *variants = cuda_ops_variants((enum op_id)op, DTYPE_BF16, device.level);
        struct plan plan = flat(DTYPE_BF16, 10, 1, 1, 1);

        if (op == OP_GEMM)
            plan = product(DTYPE_BF16, 16, 64, 64);
        assert_non_null(variants);
        for (; *variants; variants++)
            assert_string_equal(launch_of((enum op_id)op, &plan, addresses, *variants).variant, *variants);
    }
}

static void copies_go_by_element_size(void **state)
{
    const struct plan_elementwise plan = {.rank = 1, .shape = {5}, .strides = {{2}, {3}}, .count = 5};
    struct cuda_launch launch;
    struct cuda_ops_strided p;
    struct error e;

    (void)state;
    assert_int_equal(cuda_ops_copy(&plan, 4, 0x1000, 0x2000, &launch, &e), 0);
    assert_string_equal(launch.kernel, "kops_copy_4_strided");
    p = strided_of(&launch);
    assert_int_equal(p.a, 0x1000);
    assert_int_equal(p.out, 0x2000);
    assert_int_equal(p.a_strides[0], 2);
    assert_int_equal(p.out_strides[0], 3);
    assert_int_equal(cuda_ops_copy(&plan, 3, 0x1000, 0x2000, &launch, &e), -1);
    assert_int_equal(e.code, ERROR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_tensors_take_the_vector_kernel_of_their_dtype),
        cmocka_unit_test(the_head_ends_where_out_is_aligned),
        cmocka_unit_test(a_scalar_input_keeps_the_vector_kernel),
        cmocka_unit_test(grids_cover_the_work_and_stay_in_bounds),
        cmocka_unit_test(other_strides_take_the_strided_kernel),
        cmocka_unit_test(counts_and_offsets_from_2_31_on_take_64_bits),
        cmocka_unit_test(dividers_divide),
        cmocka_unit_test(a_transposed_input_is_walked_in_squares),
        cmocka_unit_test(a_variant_that_cannot_run_is_refused),
        cmocka_unit_test(every_variant_that_is_offered_runs),
        cmocka_unit_test(copies_go_by_element_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
