/* What the launcher chooses: kernels, grids, parameters, tensor maps; no kernel is run. */
#include "ops/launch.h"
#include "ops/params.h"
#include "ops/plan_launch.h"
#include "tests/support/unit.h"

static const struct cuda_ops_device device = {.multiprocessors = 132, .level = CUDA_OPS_SM90A};

/* Of the operands, in order. */
static const uint64_t addresses[] = {0x10000, 0x20000, 0x30000, 0x40000, 0x50000};

static struct cuda_ops_gemm_mapped mapped_of(const struct cuda_launch *launch)
{
    struct cuda_ops_gemm_mapped p;

    assert_int_equal(launch->params_size, sizeof(p));
    memcpy(&p, launch->params, sizeof(p));
    return p;
}

static struct plan product(enum dtype dtype, int64_t m, int64_t n, int64_t k)
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

static struct cuda_launch launch_of(enum op_id op, const struct plan *plan, const uint64_t *at, const char *variant)
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

/* An elementwise plan of rank 1 with these strides, inputs first. */
static struct plan flat(enum dtype dtype, uint64_t count, int64_t a, int64_t b, int64_t out)
{
    return (struct plan){
        .kind = PLAN_ELEMENTWISE,
        .dtype = dtype,
        .elementwise = {.rank = 1, .shape = {(int64_t)count}, .strides = {{a}, {b}, {out}}, .count = count}};
}

/* ---- elementwise ---- */

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

#define LIMIT (INT64_C(1) << 31)

/* Steps of the vectors a and b. */
#define STEPS(a, b)                                                                                                    \
    {                                                                                                                  \
        {0, (a)}, {0, (b)},                                                                                            \
        {                                                                                                              \
            0, 1                                                                                                       \
        }                                                                                                              \
    }

/* Strides of rows and columns of a, b and out. */
#define EVEN                                                                                                           \
    {                                                                                                                  \
        {64, 1}, {0, 1},                                                                                               \
        {                                                                                                              \
            72, 1                                                                                                      \
        }                                                                                                              \
    }

TEST(each_elementwise_op_has_its_kernel)
{
    enum { ROWS = CUDA_OPS_ROW_THREADS };
    static const struct {
        enum op_id op;
        enum dtype dtype;
        int64_t rows, columns; /* rows 0: vectors */
        int64_t strides[3][2];
        unsigned shift[3]; /* of the operands from 16-byte boundaries */
        const char *forced, *kernel;
        unsigned grid; /* 0: any */
    } cases[] = {
        /* operands on 16-byte boundaries, with steps of 1 */
        {OP_ADD, DTYPE_F32, 0, 1000, STEPS(1, 1), {0}, NULL, "kops_add_f32_plain", 0},
        {OP_ADD, DTYPE_F32, 0, 1000, STEPS(1, 1), {4, 0, 0}, NULL, "kops_add_f32_vector", 0},
        {OP_ADD, DTYPE_F32, 0, 1000, STEPS(1, 1), {0, 8, 0}, NULL, "kops_add_f32_vector", 0},
        {OP_ADD, DTYPE_F32, 0, 1000, STEPS(1, 1), {0, 0, 8}, NULL, "kops_add_f32_vector", 0},
        {OP_ADD, DTYPE_F32, 0, 1000, STEPS(0, 1), {0}, NULL, "kops_add_f32_vector", 0},
        {OP_ADD, DTYPE_F32, 0, 1000, STEPS(1, 0), {0}, NULL, "kops_add_f32_vector", 0},
        {OP_SQUARE, DTYPE_F32, 0, 1000, STEPS(1, 1), {0}, NULL, "kops_square_f32_plain", 0},
        {OP_SQUARE, DTYPE_F32, 0, 1000, STEPS(1, 1), {0, 4}, NULL, "kops_square_f32_vector", 0},
        /* a thread takes a pack of 16 bytes, however many elements it is; grids are bounded */
        {OP_ADD, DTYPE_F32, 0, 1024, STEPS(1, 1), {0}, NULL, "kops_add_f32_plain", 1},
        {OP_ADD, DTYPE_F32, 0, 1025, STEPS(1, 1), {0}, NULL, "kops_add_f32_plain", 2},
        {OP_ADD, DTYPE_F32, 0, 1024, STEPS(1, 1), {0}, "strided", "kops_add_f32_strided", 1},
        {OP_ADD, DTYPE_F32, 0, 1025, STEPS(1, 1), {0}, "strided", "kops_add_f32_strided", 2},
        {OP_ADD, DTYPE_F64, 0, (INT64_C(1) << 33) + 1, STEPS(1, 1), {0}, NULL, "kops_add_f64_plain", (1U << 22) + 1},
        {OP_ADD, DTYPE_F64, 0, INT64_C(1) << 46, STEPS(1, 1), {0}, NULL, "kops_add_f64_plain", 0x7fffffff},
        {OP_ADD, DTYPE_F64, 0, INT64_C(1) << 46, STEPS(1, 1), {0}, "strided", "kops_add_f64_strided64", 0x7fffffff},
        /* counts and offsets from 2^31 on take 64 bits; few elements may be far apart */
        {OP_ADD, DTYPE_F16, 0, LIMIT - 1, STEPS(1, 1), {0}, "strided", "kops_add_f16_strided", 0},
        {OP_ADD, DTYPE_F16, 0, LIMIT, STEPS(1, 1), {0}, "strided", "kops_add_f16_strided64", 0},
        {OP_ADD, DTYPE_F16, 0, 3, STEPS(1, LIMIT / 2 - 1), {0}, NULL, "kops_add_f16_strided", 0},
        {OP_ADD, DTYPE_F16, 0, 3, STEPS(1, LIMIT / 2), {0}, NULL, "kops_add_f16_strided64", 0},
        /* rows: 8 pieces a row, or 9 where rows of out do not begin at boundaries; few bytes a row are none */
        {OP_ADD, DTYPE_F32, 96, 64, EVEN, {4}, NULL, "kops_add_f32_rows", 8 * 96 / ROWS},
        {OP_ADD, DTYPE_F64, 96, 64, EVEN, {4}, "rows", "kops_add_f64_rows", 8 * 96 / ROWS},
        {OP_ADD, DTYPE_F32, 96, 64, {{64, 1}, {1, 0}, {65, 1}}, {4}, NULL, "kops_add_f32_rows", 9 * 96 / ROWS + 1},
        {OP_ADD, DTYPE_I8, 96, 31, EVEN, {4}, NULL, "kops_add_u8_strided", 0},
        /* transposed inputs */
        {OP_ADD, DTYPE_F32, 96, 64, {{64, 1}, {1, 96}, {64, 1}}, {0}, NULL, "kops_add_f32_tiles", 2},
        {OP_ADD, DTYPE_F64, 96, 64, {{1, 96}, {1, 100}, {64, 1}}, {0}, NULL, "kops_add_f64_tiles", 6},
        {OP_ADD, DTYPE_F64, 96, 64, {{64, 2}, {1, 96}, {64, 1}}, {0}, NULL, "kops_add_f64_strided", 0},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const bool is_vector = !cases[i].rows;
        struct plan plan = {.kind = PLAN_ELEMENTWISE, .dtype = cases[i].dtype};
        struct plan_elementwise *w = &plan.elementwise;
        struct cuda_launch launch;
        uint64_t at[3];

        w->rank = is_vector ? 1 : 2;
        memcpy(w->shape, &cases[i].rows + is_vector, w->rank * sizeof(int64_t));
        w->count = (uint64_t)((is_vector ? 1 : cases[i].rows) * cases[i].columns);
        for (unsigned o = 0; o < 3; o++) {
            at[o] = addresses[o] + cases[i].shift[o];
            memcpy(w->strides[o], cases[i].strides[o] + is_vector, w->rank * sizeof(int64_t));
        }
        launch = launch_of(cases[i].op, &plan, at, cases[i].forced);
        if (strcmp(launch.kernel, cases[i].kernel) != 0 || (cases[i].grid && launch.grid[0] != cases[i].grid))
            fail_msg("case %u: %s, %u blocks, not %s", i, launch.kernel, launch.grid[0], cases[i].kernel);
    }
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

TEST(a_variant_that_cannot_run_is_refused)
{
    const struct plan plan = flat(DTYPE_F32, 10, 2, 1, 1);
    struct cuda_launch launch = {.kernel = "untouched"};

    MUST_FAIL(cuda_ops_launch(OP_ADD, &plan, addresses, "vector", &device, &launch, &e), ERROR_INVALID_ARGUMENT, "");
    MUST_FAIL(cuda_ops_launch(OP_ADD, &plan, addresses, "blaslt", &device, &launch, &e), ERROR_INVALID_ARGUMENT, "");
    MUST_FAIL(cuda_ops_copy(&plan.elementwise, 3, 0x1000, 0x2000, &launch, &e), ERROR_UNSUPPORTED, "");
    assert_string_equal(launch.kernel, "untouched");
}

TEST(every_variant_that_is_offered_runs)
{
    static const int64_t strides[2][3][2] = {{{1, 96}, {64, 1}}, {{64, 1}, {1, 96}, {64, 1}}}; /* by inputs */

    for (unsigned op = 0; op < OP_COUNT; op++) {
        const enum dtype dtype = op == OP_SCALED_GEMM ? DTYPE_F8_E4M3 : DTYPE_BF16;
        const char *const *variants = cuda_ops_variants((enum op_id)op, dtype, device.level);
        struct plan plan = flat(DTYPE_BF16, 10, 1, 1, 1);
        struct plan turned = {.kind = PLAN_ELEMENTWISE,
                              .dtype = DTYPE_BF16,
                              .elementwise = {.rank = 2, .shape = {96, 64}, .count = 96 * 64}};

        for (unsigned i = 0; i < 3; i++)
            memcpy(turned.elementwise.strides[i], strides[op_get((enum op_id)op)->n_inputs > 1][i],
                   sizeof(strides[0][0]));
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

/* ---- products ---- */

static struct plan biased(struct plan plan)
{
    plan.gemm.beta = 0;
    plan.gemm.has_bias = true;
    plan.gemm.bias = (struct plan_matrix){.row = 0, .column = 1};
    plan.gemm.activation = PLAN_GELU;
    return plan;
}

TEST(each_product_has_its_kernel)
{
    static const struct {
        enum dtype dtype;
        int64_t m, n, k;
        const char *forced, *kernel; /* its name, up to a last _, or the variant */
        unsigned grid;               /* 0: any */
        bool odd, medium, linear;    /* a on no 16-byte boundary; precision "medium"; with a bias */
        unsigned batches;
        struct cuda_ops_device on; /* none: an H200 */
    } cases[] = {
        {DTYPE_BF16, 4096, 4096, 4096, NULL, "hopper", .grid = 132},
        {DTYPE_BF16, 4096, 4095, 4096, NULL, "tiled"},
        {DTYPE_BF16, 16, 4096, 4096, NULL, "skinny"},
        {DTYPE_F32, 16, 4096, 4096, NULL, "skinny"},
        {DTYPE_F32, 256, 256, 256, NULL, "small"},
        {DTYPE_F32, 4096, 4096, 4096, NULL, "tiled"},
        {DTYPE_F64, 16, 4096, 4096, NULL, "tiled"},
        {DTYPE_F16, 4096, 4096, 4096, "tiled", "kops_gemm_f16_tiled_large", .grid = 32 * 32},
        {DTYPE_F16, 4096, 4096, 4096, "tiled", "kops_gemm_f16_tiled_large_any", .odd = true},
        {DTYPE_F16, 4096, 4096, 4095, "tiled", "kops_gemm_f16_tiled_large_any"},
        {DTYPE_F16, 4096, 4095, 4096, "tiled", "kops_gemm_f16_tiled_large_any"},
        {DTYPE_F32, 640, 640, 640, "tiled", "kops_gemm_f32_tiled_small", .grid = 100},
        {DTYPE_F32, 640, 640, 640, "tiled", "kops_gemm_f32_tiled_large", .grid = 25 * 1000, .batches = 1000},
        {DTYPE_F32, 256, 256, 256, "small", "kops_gemm_f32_small_2", .grid = 128},
        {DTYPE_F32, 256, 256, 256, "small", "kops_gemm_f32_small_2_any", .odd = true},
        {DTYPE_F32, 256, 256, 256, "small", "kops_gemm_tf32_small_2", .grid = 128, .medium = true},
        {DTYPE_F32, 256, 256, 256, "small", "kops_gemm_tf32_small_2_any", .odd = true, .medium = true},
        {DTYPE_F32, 256, 256, 256, "small", "kops_gemm_tf32_small_1", .medium = true, .on = {108, CUDA_OPS_SM80}},
        {DTYPE_F32, 256, 256, 256, "small", "kops_gemm_f32_small_1", .medium = true, .on = {80, CUDA_OPS_ANY}},
        {DTYPE_F32, 16, 4096, 4096, "skinny", "kops_gemm_f32_skinny_across_"},
        {DTYPE_F32, 4096, 16, 4096, "skinny", "kops_gemm_f32_skinny_along_"},
        {DTYPE_F32, 4096, 16, 4096, "skinny", "kops_gemm_f32_skinny_along_1", .grid = 256,
         .on = {132, CUDA_OPS_ANY}}, /* no clusters */
        {DTYPE_F16, 16, 4096, 4096, NULL, "kops_linear_f16_skinny_across_2", .linear = true},
        {DTYPE_F32, 256, 256, 256, NULL, "tiled", .linear = true},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint64_t at[] = {cases[i].odd ? 0x10004 : 0x10000, 0x20000, 0x30000, 0x40000};
        const struct cuda_ops_device *on = cases[i].on.multiprocessors ? &cases[i].on : &device;
        struct plan plan = product(cases[i].dtype, cases[i].m, cases[i].n, cases[i].k);
        struct cuda_launch launch;
        size_t length;

        plan.gemm.high_precision_only = !cases[i].medium;
        if (cases[i].batches) {
            plan.gemm.batch_rank = 1;
            plan.gemm.batch_count = plan.gemm.batch_shape[0] = cases[i].batches;
        }
        if (cases[i].linear)
            plan = biased(plan);
        MUST(cuda_ops_launch(cases[i].linear ? OP_LINEAR : OP_GEMM, &plan, at, cases[i].forced, on, &launch, &e));
        length = strlen(cases[i].kernel) + (cases[i].kernel[strlen(cases[i].kernel) - 1] != '_');
        if (strncmp(launch.kernel, cases[i].kernel, length) != 0 && strcmp(launch.variant, cases[i].kernel) != 0)
            fail_msg("%u: %s (%s)", i, launch.kernel, launch.variant);
        if (cases[i].grid && launch.grid[0] != cases[i].grid)
            fail_msg("%u: %u blocks", i, launch.grid[0]);
    }
}

TEST(hopper_describes_its_operands)
{
    static const struct {
        enum dtype dtype;
        struct {
            int64_t m, n, k, row; /* row: of b and out */
            unsigned batches;
        } size;
        const char *kernel; /* NULL: any; "…_xk": out by columns, the transposed product: a is now b */
        struct {
            uint64_t address, inner, outer, lead, batches, batch; /* strides in elements; batch 0: any */
            uint32_t rows;
        } maps[3];
    } cases[] = {
        {DTYPE_BF16,
         {4096, 3848, 1024, 3848, 1},
         "kops_gemm_bf16_hopper_128x256_kx",
         {{0x10000, 1024, 4096, 1024, 1, 0, 128},
          {0x20000, 3848, 1024, 3848, 1, 0, 64},
          {0x30000, 3848, 4096, 3848, 1, 0, 64}}},
        {DTYPE_BF16,
         {4096, 3848, 1024, 3848, 1},
         "kops_gemm_bf16_hopper_128x256_xk",
         {{0x20000, 3848, 1024, 3848, 1, 0, 64},
          {0x10000, 1024, 4096, 1024, 1, 0, 128},
          {0x30000, 4096, 3848, 4096, 1, 0, 64}}},
        /* a batch, of which b is the same for all, and ends of rows */
        {DTYPE_F16,
         {100, 101, 72, 104, 5},
         NULL,
         {{0x10000, 72, 100, 72, 5, 7200, 0}, {0x20000, 101, 72, 104, 1, 0, 0}, {0x30000, 96, 100, 104, 5, 10400, 64}}},
    };

    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct plan plan = product(cases[c].dtype, cases[c].size.m, cases[c].size.n, cases[c].size.k);
        struct cuda_launch launch;
        struct cuda_ops_gemm_mapped p;

        plan.gemm.b.row = plan.gemm.out.row = cases[c].size.row;
        if (cases[c].kernel && strstr(cases[c].kernel, "_xk"))
            plan.gemm.out = (struct plan_matrix){.row = 1, .column = cases[c].size.m};
        if (cases[c].size.batches > 1) {
            plan.gemm.batch_rank = 1;
            plan.gemm.batch_count = plan.gemm.batch_shape[0] = cases[c].size.batches;
            plan.gemm.a.batch[0] = (int64_t)cases[c].maps[0].batch;
            plan.gemm.out.batch[0] = (int64_t)cases[c].maps[2].batch;
        }
        launch = launch_of(OP_GEMM, &plan, addresses, "hopper");
        p = mapped_of(&launch);
        assert_int_equal(launch.n_maps, 3);
        assert_true(!cases[c].kernel || !strcmp(launch.kernel, cases[c].kernel));
        assert_true(launch.shared_bytes > 4 * 24 << 10 && launch.shared_bytes <= CUDA_OPS_MAPPED_SHARED_MAX);
        assert_true(p.alpha == 2 && p.beta == 3 && p.k == cases[c].size.k && p.batch_count == cases[c].size.batches);
        assert_true(!p.b_batch && p.a_batch == (cases[c].size.batches > 1) && p.out_batch == cases[c].maps[2].batch);
        assert_true(!cases[c].kernel || (p.tiles_m == 16 && p.tiles_n == 16 && launch.grid[0] == 132));
        for (unsigned i = 0; i < 3; i++) {
            const struct plan_map *m = &launch.maps[i].map;

            assert_int_equal(m->type, cases[c].dtype == DTYPE_BF16 ? 9 : 6);
            assert_int_equal(m->address, cases[c].maps[i].address);
            assert_int_equal(m->extents[0], cases[c].maps[i].inner);
            assert_int_equal(m->extents[1], cases[c].maps[i].outer);
            assert_int_equal(m->extents[2], cases[c].maps[i].batches);
            assert_int_equal(m->strides[0], 2 * cases[c].maps[i].lead);
            assert_true(m->strides[1] % 16 == 0 &&
                        (!cases[c].maps[i].batch || m->strides[1] == 2 * cases[c].maps[i].batch));
            assert_true(m->box[0] == 64 && m->box[2] == 1 &&
                        (!cases[c].maps[i].rows || m->box[1] == cases[c].maps[i].rows));
            assert_true(launch.maps[i].at % 64 == 0 && launch.maps[i].at + PLAN_MAP_BYTES <= launch.params_size);
        }
    }
}

TEST(a_bias_is_read_in_pairs_where_it_can_be)
{
    for (unsigned way = 0; way < 3; way++) {
        const uint64_t at[] = {0x10000, 0x20000, way == 1 ? 0x30002 : 0x30000, 0x40000};
        struct plan plan = biased(product(DTYPE_BF16, 512, 256, 128));
        struct cuda_launch launch;

        if (way == 2) /* the transposed product: a bias of each row */
            plan.gemm.out = (struct plan_matrix){.row = 1, .column = 512};
        launch = launch_of(OP_LINEAR, &plan, at, NULL);
        assert_string_equal(launch.variant, "hopper");
        assert_int_equal(mapped_of(&launch).bias_pairs, way == 0);
    }
}

TEST(variants_say_what_they_cannot_do)
{
    static const struct {
        enum dtype dtype;
        int64_t m, n, k;
        const char *forced, *why;
        bool odd;                  /* b on no 16-byte boundary */
        int64_t a_row;             /* 0: k */
        unsigned batches;          /* dimensions, of 2 each */
        struct cuda_ops_device on; /* none: an H200 */
    } cases[] = {
        {DTYPE_BF16, 64, 64, 64, "hopper", "boundaries", .odd = true},
        {DTYPE_BF16, 64, 64, 64, "hopper", "an operand", .a_row = 68},
        {DTYPE_BF16, 64, 60, 64, "hopper", "out's"},
        {DTYPE_BF16, 64, 64, 0, "hopper", "terms"},
        {DTYPE_BF16, 64, 7, 64, "hopper", "fewer than 8"},
        {DTYPE_BF16, 64, 64, 64, "hopper", "batches", .batches = 2},
        {DTYPE_F32, 64, 64, 64, "hopper", "no such variant"},
        {DTYPE_BF16, 64, 64, 64, "hopper", "", .on = {132, CUDA_OPS_SM90}},
        {DTYPE_BF16, 64, 64, 64, "hopper", "", .on = {132, CUDA_OPS_SM80}},
        {DTYPE_BF16, 64, 64, 64, "hopper", "", .on = {132, CUDA_OPS_ANY}},
        {DTYPE_F32, 17, 17, 64, "skinny", "more than 16"},
        {DTYPE_F32, 16, 33, 64, "skinny", "boundaries"},
        {DTYPE_F32, 4096, 4096, 64, "small", "4194304"},
    };
    struct cuda_launch launch = {.kernel = "untouched"};
    struct plan plan;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct cuda_ops_device *on = cases[i].on.multiprocessors ? &cases[i].on : &device;
        const uint64_t at[] = {0x10000, cases[i].odd ? 0x20008 : 0x20000, 0x30000};

        plan = product(cases[i].dtype, cases[i].m, cases[i].n, cases[i].k);
        plan.gemm.a.row = cases[i].a_row ? cases[i].a_row : cases[i].k;
        plan.gemm.batch_rank = cases[i].batches;
        plan.gemm.batch_count = 1U << cases[i].batches;
        plan.gemm.batch_shape[0] = plan.gemm.batch_shape[1] = 2;
        MUST_FAIL(cuda_ops_launch(OP_GEMM, &plan, at, cases[i].forced, on, &launch, &e), ERROR_INVALID_ARGUMENT,
                  cases[i].why);
        assert_string_equal(launch.kernel, "untouched");
    }
    plan = biased(product(DTYPE_F16, 16, 4096, 4096));
    plan.out_dtype = DTYPE_F32;
    MUST_FAIL(cuda_ops_launch(OP_LINEAR, &plan, addresses, "hopper", &device, &launch, &e), ERROR_INVALID_ARGUMENT,
              "out of another dtype");
    assert_string_equal(launch_of(OP_LINEAR, &plan, addresses, NULL).variant, "tiled");
}

TEST(levels_follow_from_the_code_that_runs)
{
    static const struct {
        const char *architectures;
        unsigned capability;
        enum cuda_ops_level level;
    } cases[] = {{"75,80,86,89,90a,100,120", 90, CUDA_OPS_SM90A},
                 {"75,80,86,89,90a,100,120", 100, CUDA_OPS_SM90},
                 {"75,80,86,89,90a,100,120", 103, CUDA_OPS_SM90},
                 {"75,80,86,89,90a,100,120", 80, CUDA_OPS_SM80},
                 {"75,80,86,89,90a,100,120", 75, CUDA_OPS_ANY},
                 {"75,80,86,89,90a,100,120", 110, CUDA_OPS_ANY},
                 {"80", 90, CUDA_OPS_SM80},
                 {"90", 90, CUDA_OPS_SM90},
                 {"90,90a", 90, CUDA_OPS_SM90},
                 {"90a,90", 90, CUDA_OPS_SM90},
                 {"90a", 100, CUDA_OPS_ANY},
                 {"90", 120, CUDA_OPS_SM90},
                 {NULL, 90, CUDA_OPS_SM90A},
                 {NULL, 120, CUDA_OPS_SM90},
                 {NULL, 86, CUDA_OPS_SM80},
                 {NULL, 75, CUDA_OPS_ANY}};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (cuda_ops_level_of(cases[i].architectures, cases[i].capability) != cases[i].level)
            fail_msg("%s on %u", cases[i].architectures ? cases[i].architectures : "all", cases[i].capability);
}
