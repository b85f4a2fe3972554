/* What the launcher chooses: kernels, grids, parameters; no kernel is run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ops/launch.h"
#include "ops/params.h"
#include "ops/plan_launch.h"

static const struct cuda_ops_device device = {.multiprocessors = 132, .level = CUDA_OPS_SM90A};

/* An elementwise plan of rank 1 with these strides, inputs first. */
static struct plan flat(enum dtype dtype, uint64_t count, int64_t a, int64_t b, int64_t out)
{
    return (struct plan){
        .kind = PLAN_ELEMENTWISE,
        .dtype = dtype,
        .elementwise = {.rank = 1, .shape = {(int64_t)count}, .strides = {{a}, {b}, {out}}, .count = count}};
}

static struct plan product(enum dtype dtype, int64_t m, int64_t n, int64_t k)
{
    return (struct plan){.kind = PLAN_GEMM,
                         .dtype = dtype,
                         .gemm = {.m = m,
                                  .n = n,
                                  .k = k,
                                  .batch_count = 1,
                                  .a = {.row = k, .column = 1},
                                  .b = {.row = n, .column = 1},
                                  .out = {.row = n, .column = 1},
                                  .alpha = 2,
                                  .beta = 3}};
}

static struct cuda_launch launch_of(enum op_id op, const struct plan *plan, const uint64_t *addresses,
                                    const char *variant)
{
    struct cuda_launch launch;
    struct error e;

    if (cuda_ops_launch(op, plan, addresses, variant, &device, &launch, &e) < 0)
        fail_msg("%s", e.message);
    assert_true(launch.grid[0] >= 1 && launch.grid[1] == 1 && launch.grid[2] == 1);
    assert_int_equal(launch.block[0], launch.n_maps                               ? CUDA_OPS_MAPPED_THREADS
                                         : strcmp(launch.variant, "skinny") == 0 ? CUDA_OPS_SKINNY_THREADS
                                                                                 : 256);
    return launch;
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

static struct cuda_ops_gemm gemm_of(const struct cuda_launch *launch)
{
    struct cuda_ops_gemm p;

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

/* ---- gemm ---- */

static void gemm_reads_aligned_operands_in_pieces(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000}, odd[] = {0x10002, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_F16, 4096, 4096, 4096);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    struct cuda_ops_gemm p = gemm_of(&launch);

    (void)state;
    assert_string_equal(launch.kernel, "kops_gemm_f16_tiled_large");
    assert_string_equal(launch.variant, "tiled");
    assert_int_equal(launch.grid[0], 32 * 32);
    assert_int_equal(p.a_access, CUDA_OPS_ACCESS_ALONG_K);
    assert_int_equal(p.b_access, CUDA_OPS_ACCESS_ACROSS_K);
    assert_int_equal(p.out_vector, 1);
    assert_true(p.alpha == 2 && p.beta == 3);
    launch = launch_of(OP_GEMM, &plan, odd, "tiled");
    assert_string_equal(launch.kernel, "kops_gemm_f16_tiled_large_any");
    plan = product(DTYPE_F16, 4096, 4096, 4095);
    launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    assert_string_equal(launch.kernel, "kops_gemm_f16_tiled_large_any");
    plan = product(DTYPE_F16, 4096, 4095, 4096);
    launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    assert_int_equal(gemm_of(&launch).out_vector, 0);
    /* A batch that starts off a boundary. */
    plan = product(DTYPE_F16, 4096, 4096, 4096);
    plan.gemm.batch_rank = 1;
    plan.gemm.batch_count = 2;
    plan.gemm.batch_shape[0] = 2;
    plan.gemm.a.batch[0] = 4097;
    launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    assert_string_equal(launch.kernel, "kops_gemm_f16_tiled_large_any");
}

static void small_products_take_small_tiles(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_F32, 640, 640, 640);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "tiled");

    (void)state;
    assert_string_equal(launch.kernel, "kops_gemm_f32_tiled_small");
    assert_int_equal(launch.grid[0], 100);
    /* Many of them fill the GPU with large ones. */
    plan.gemm.batch_rank = 1;
    plan.gemm.batch_count = plan.gemm.batch_shape[0] = 1000;
    launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    assert_string_equal(launch.kernel, "kops_gemm_f32_tiled_large");
    assert_int_equal(launch.grid[0], 25 * 1000);
}

static void an_out_that_is_contiguous_down_its_columns_is_computed_transposed(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_F32, 300, 200, 100);
    struct cuda_launch launch;
    struct cuda_ops_gemm p;

    (void)state;
    plan.gemm.out = (struct plan_matrix){.row = 1, .column = 300};
    launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    p = gemm_of(&launch);
    assert_int_equal(p.m, 200);
    assert_int_equal(p.n, 300);
    assert_int_equal(p.a.address, 0x20000);
    assert_int_equal(p.a.row, 1);
    assert_int_equal(p.a.column, 200);
    assert_int_equal(p.b.address, 0x10000);
    assert_int_equal(p.b.row, 1);
    assert_int_equal(p.b.column, 100);
    assert_int_equal(p.out.row, 300);
    assert_int_equal(p.out.column, 1);
}

static void batches_are_listed_from_the_innermost(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_F64, 3, 4, 5);
    struct cuda_launch launch;
    struct cuda_ops_gemm p;

    (void)state;
    plan.gemm.batch_rank = 2;
    plan.gemm.batch_shape[0] = 6;
    plan.gemm.batch_shape[1] = 7;
    plan.gemm.batch_count = 42;
    plan.gemm.a.batch[0] = 1000;
    plan.gemm.b.batch[1] = 20;
    launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    p = gemm_of(&launch);
    assert_int_equal(launch.grid[0], 42);
    assert_int_equal(p.batch_shape[0], 7);
    assert_int_equal(p.batch_shape[1], 6);
    assert_int_equal(p.a.batch[0], 0);
    assert_int_equal(p.a.batch[1], 1000);
    assert_int_equal(p.b.batch[0], 20);
}

static void no_launch(const struct plan *plan, const uint64_t *addresses, const char *variant, const char *why)
{
    struct cuda_launch launch = {.kernel = "untouched"};
    struct error e = {0};

    assert_int_equal(cuda_ops_launch(OP_GEMM, plan, addresses, variant, &device, &launch, &e), -1);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    if (!strstr(e.message, why))
        fail_msg("\"%s\" does not say \"%s\"", e.message, why);
    assert_string_equal(launch.kernel, "untouched");
}

static struct cuda_ops_gemm_mapped mapped_of(const struct cuda_launch *launch)
{
    struct cuda_ops_gemm_mapped p;

    assert_int_equal(launch->params_size, sizeof(p));
    memcpy(&p, launch->params, sizeof(p));
    return p;
}

static void check_map(const struct cuda_launch *launch, unsigned i, uint64_t address, uint64_t inner, uint64_t outer,
                      uint64_t lead, uint32_t rows)
{
    const struct cuda_launch_map *m = &launch->maps[i];

    assert_int_equal(m->address, address);
    assert_int_equal(m->extents[0], inner);
    assert_int_equal(m->extents[1], outer);
    assert_int_equal(m->strides[0], 2 * lead);
    assert_int_equal(m->strides[1] % 16, 0);
    assert_int_equal(m->box[0], 64);
    assert_int_equal(m->box[1], rows);
    assert_int_equal(m->box[2], 1);
    assert_true(m->at % 64 == 0 && m->at + CUDA_MAP_BYTES <= launch->params_size);
}

static void hopper_describes_its_operands(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_BF16, 4096, 3848, 1024);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "hopper");
    struct cuda_ops_gemm_mapped p = mapped_of(&launch);

    (void)state;
    assert_string_equal(launch.kernel, "kops_gemm_bf16_hopper_128x256_kx");
    assert_string_equal(launch.variant, "hopper");
    assert_int_equal(launch.n_maps, 3);
    assert_int_equal(launch.grid[0], 132);
    assert_true(launch.shared_bytes > 4 * 48 << 10 && launch.shared_bytes <= CUDA_OPS_MAPPED_SHARED_MAX);
    check_map(&launch, 0, 0x10000, 1024, 4096, 1024, 128);
    check_map(&launch, 1, 0x20000, 3848, 1024, 3848, 64);
    check_map(&launch, 2, 0x30000, 3848, 4096, 3848, 64);
    assert_int_equal(launch.maps[0].type, 9);
    assert_true(p.alpha == 2 && p.beta == 3 && p.m == 4096 && p.n == 3848 && p.k == 1024 && p.batch_count == 1);
    assert_int_equal(p.tiles_m, 16);
    assert_int_equal(p.tiles_n, 16);
    /* The transposed product, for an out with contiguous columns: a is now b. */
    plan.gemm.out = (struct plan_matrix){.row = 1, .column = 4096};
    launch = launch_of(OP_GEMM, &plan, addresses, "hopper");
    assert_string_equal(launch.kernel, "kops_gemm_bf16_hopper_128x256_xk");
    check_map(&launch, 0, 0x20000, 3848, 1024, 3848, 64);
    check_map(&launch, 1, 0x10000, 1024, 4096, 1024, 128);
    check_map(&launch, 2, 0x30000, 4096, 3848, 4096, 64);
}

static void hopper_does_batches_and_ends_of_rows(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_F16, 100, 101, 72);
    struct cuda_launch launch;
    struct cuda_ops_gemm_mapped p;

    (void)state;
    plan.gemm.b.row = plan.gemm.out.row = 104;
    plan.gemm.batch_rank = 1;
    plan.gemm.batch_shape[0] = 5;
    plan.gemm.batch_count = 5;
    plan.gemm.a.batch[0] = 7200;
    plan.gemm.out.batch[0] = 10400;
    launch = launch_of(OP_GEMM, &plan, addresses, "hopper");
    p = mapped_of(&launch);
    check_map(&launch, 2, 0x30000, 96, 100, 104, 64);
    assert_true(p.a_batch == 1 && p.b_batch == 0 && p.out_batch == 10400 && p.out_row == 104);
    assert_int_equal(launch.maps[0].extents[2], 5);
    assert_int_equal(launch.maps[0].strides[1], 14400);
    assert_int_equal(launch.maps[1].extents[2], 1);
    assert_int_equal(launch.maps[2].extents[2], 5);
    assert_int_equal(launch.maps[0].type, 6);
    assert_int_equal(launch.grid[0] % 2, 0);
}

static void hopper_says_what_it_cannot_do(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000}, odd[] = {0x10000, 0x20008, 0x30000};
    const struct cuda_ops_device others[] = {{132, CUDA_OPS_SM90}, {108, CUDA_OPS_SM80}, {40, CUDA_OPS_ANY}};
    struct plan plan = product(DTYPE_BF16, 64, 64, 64);
    struct cuda_launch launch;
    struct error e = {0};

    (void)state;
    launch_of(OP_GEMM, &plan, addresses, "hopper");
    no_launch(&plan, odd, "hopper", "boundaries");
    plan.gemm.a.row = 68;
    no_launch(&plan, addresses, "hopper", "an operand");
    plan = product(DTYPE_BF16, 64, 60, 64);
    no_launch(&plan, addresses, "hopper", "out's");
    plan = product(DTYPE_BF16, 64, 64, 0);
    no_launch(&plan, addresses, "hopper", "terms");
    plan = product(DTYPE_BF16, 64, 7, 64);
    no_launch(&plan, addresses, "hopper", "fewer than 8");
    plan = product(DTYPE_BF16, 64, 64, 64);
    plan.gemm.batch_rank = 2;
    plan.gemm.batch_shape[0] = plan.gemm.batch_shape[1] = 2;
    plan.gemm.batch_count = 4;
    no_launch(&plan, addresses, "hopper", "batches");
    plan = product(DTYPE_F32, 64, 64, 64);
    no_launch(&plan, addresses, "hopper", "no such variant");
    plan = product(DTYPE_BF16, 64, 64, 64);
    for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_int_equal(cuda_ops_launch(OP_GEMM, &plan, addresses, "hopper", &others[i], &launch, &e), -1);
}

static void few_rows_share_the_sum_among_blocks(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};
    const struct cuda_ops_device old = {132, CUDA_OPS_ANY};
    struct plan plan = product(DTYPE_F32, 16, 4096, 4096);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "skinny");
    struct cuda_ops_gemm p = gemm_of(&launch);
    struct error e;

    (void)state;
    assert_non_null(strstr(launch.kernel, "kops_gemm_f32_skinny_across_"));
    assert_int_equal(launch.grid[0], p.tiles_n * (uint64_t)(launch.kernel[strlen(launch.kernel) - 1] - '0'));
    assert_int_equal(p.tiles_n, 128);
    assert_int_equal(p.a_access, CUDA_OPS_ACCESS_ALONG_K);
    /* Few columns: the transposed product. */
    plan = product(DTYPE_F32, 4096, 16, 4096);
    launch = launch_of(OP_GEMM, &plan, addresses, "skinny");
    p = gemm_of(&launch);
    assert_non_null(strstr(launch.kernel, "kops_gemm_f32_skinny_along_"));
    assert_int_equal(p.m, 16);
    assert_int_equal(p.b.address, 0x10000);
    assert_int_equal(p.a_access, CUDA_OPS_ACCESS_ACROSS_K);
    /* Where there are no clusters, one block a tile. */
    assert_int_equal(cuda_ops_launch(OP_GEMM, &plan, addresses, "skinny", &old, &launch, &e), 0);
    assert_string_equal(launch.kernel, "kops_gemm_f32_skinny_along_1");
    plan = product(DTYPE_F32, 17, 17, 64);
    no_launch(&plan, addresses, "skinny", "more than 16");
    plan = product(DTYPE_F32, 16, 33, 64);
    no_launch(&plan, addresses, "skinny", "boundaries");
}

static void small_products_are_shared_among_all_multiprocessors(void **state)
{
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000}, odd[] = {0x10004, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_F32, 256, 256, 256);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "small");

    (void)state;
    assert_string_equal(launch.kernel, "kops_gemm_f32_small_2");
    assert_int_equal(launch.grid[0], 128);
    launch = launch_of(OP_GEMM, &plan, odd, "small");
    assert_string_equal(launch.kernel, "kops_gemm_f32_small_2_any");
    plan = product(DTYPE_F32, 4096, 4096, 64);
    no_launch(&plan, addresses, "small", "4194304");
}

static void the_choice_falls_on_a_variant_that_can(void **state)
{
    static const struct {
        enum dtype dtype;
        int64_t m, n, k;
        const char *variant;
    } cases[] = {{DTYPE_BF16, 4096, 4096, 4096, "hopper"}, {DTYPE_BF16, 4096, 4095, 4096, "tiled"},
                 {DTYPE_BF16, 16, 4096, 4096, "skinny"},   {DTYPE_F32, 16, 4096, 4096, "skinny"},
                 {DTYPE_F32, 256, 256, 256, "small"},      {DTYPE_F32, 4096, 4096, 4096, "tiled"},
                 {DTYPE_F64, 16, 4096, 4096, "tiled"}};
    const uint64_t addresses[] = {0x10000, 0x20000, 0x30000};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct plan plan = product(cases[i].dtype, cases[i].m, cases[i].n, cases[i].k);

        assert_string_equal(launch_of(OP_GEMM, &plan, addresses, NULL).variant, cases[i].variant);
    }
}

static void levels_follow_from_the_code_that_runs(void **state)
{
    static const struct {
        const char *architectures;
        unsigned capability;
        enum cuda_ops_level level;
    } cases[] = {{"75;80;86;89;90a;100;120", 90, CUDA_OPS_SM90A}, {"75;80;86;89;90a;100;120", 100, CUDA_OPS_SM90},
                 {"75;80;86;89;90a;100;120", 103, CUDA_OPS_SM90}, {"75;80;86;89;90a;100;120", 80, CUDA_OPS_SM80},
                 {"75;80;86;89;90a;100;120", 75, CUDA_OPS_ANY},   {"75;80;86;89;90a;100;120", 110, CUDA_OPS_ANY},
                 {"80", 90, CUDA_OPS_SM80},                       {"90", 90, CUDA_OPS_SM90},
                 {"90;90a", 90, CUDA_OPS_SM90},                   {"90a;90", 90, CUDA_OPS_SM90},
                 {"90a", 100, CUDA_OPS_ANY},                      {"90", 120, CUDA_OPS_SM90},
                 {NULL, 90, CUDA_OPS_SM90A},                      {NULL, 120, CUDA_OPS_SM90},
                 {NULL, 86, CUDA_OPS_SM80},                       {NULL, 75, CUDA_OPS_ANY}};

    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (cuda_ops_level_of(cases[i].architectures, cases[i].capability) != cases[i].level)
            fail_msg("%s on %u", cases[i].architectures ? cases[i].architectures : "all", cases[i].capability);
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
        cmocka_unit_test(gemm_reads_aligned_operands_in_pieces),
        cmocka_unit_test(small_products_take_small_tiles),
        cmocka_unit_test(an_out_that_is_contiguous_down_its_columns_is_computed_transposed),
        cmocka_unit_test(batches_are_listed_from_the_innermost),
        cmocka_unit_test(hopper_describes_its_operands),
        cmocka_unit_test(hopper_does_batches_and_ends_of_rows),
        cmocka_unit_test(hopper_says_what_it_cannot_do),
        cmocka_unit_test(few_rows_share_the_sum_among_blocks),
        cmocka_unit_test(small_products_are_shared_among_all_multiprocessors),
        cmocka_unit_test(the_choice_falls_on_a_variant_that_can),
        cmocka_unit_test(levels_follow_from_the_code_that_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
