/* What the launcher chooses for gemm: kernels, grids, parameters, tensor maps; no kernel is run. */
#include "launches.h"
#include "ops/params_scaled.h"
#include "tests/support/unit.h"

PARAMS_OF(gemm_of, cuda_ops_gemm)

TEST(scales_turn_with_the_product)
{
    struct plan plan = product(DTYPE_F8_E4M3, 512, 256, 128);
    struct cuda_ops_gemm_scaled p;
    struct cuda_launch launch;

    plan.out_dtype = DTYPE_BF16;
    plan.gemm.beta = 0;
    plan.gemm.alpha = 1;
    plan.gemm.has_scales = true;
    plan.gemm.b_dtype = DTYPE_F8_E5M2;
    plan.gemm.extra[0] = (struct plan_matrix){.row = 1, .column = 0};
    plan.gemm.extra[1] = (struct plan_matrix){.row = 0, .column = 0};
    launch = launch_of(OP_SCALED_GEMM, &plan, addresses, NULL);
    assert_int_equal(launch.params_size, sizeof(p));
    memcpy(&p, launch.params, sizeof(p));
    assert_string_equal(launch.variant, "tiled");
    assert_true(p.scale_a.address == 0x30000 && p.scale_a.row == 1 && p.scale_a.column == 0);
    assert_true(p.scale_b.address == 0x40000 && p.scale_b.row == 0 && p.scale_b.column == 0);
    assert_true(p.a_format == CUDA_OPS_E4M3 && p.b_format == CUDA_OPS_E5M2 && p.out_type == CUDA_OPS_OUT_BF16);
    assert_true(p.gemm.out.address == 0x50000 && p.gemm.out_wide == 0 && p.gemm.bias.address == 0);
    plan.gemm.out = (struct plan_matrix){.row = 1, .column = 512};
    plan.out_dtype = DTYPE_F32;
    launch = launch_of(OP_SCALED_GEMM, &plan, addresses, NULL);
    memcpy(&p, launch.params, sizeof(p));
    assert_true(p.gemm.m == 256 && p.gemm.a.address == 0x20000 && p.out_type == CUDA_OPS_OUT_F32);
    assert_true(p.scale_b.address == 0x30000 && p.scale_b.row == 0 && p.scale_b.column == 1);
    assert_true(p.scale_a.address == 0x40000);
    assert_true(p.a_format == CUDA_OPS_E5M2 && p.b_format == CUDA_OPS_E4M3);
}

TEST(gemm_reads_aligned_operands_in_pieces)
{
    const uint64_t odd[] = {0x10002, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_F16, 4096, 4096, 4096);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    struct cuda_ops_gemm p = gemm_of(&launch);

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

TEST(small_products_take_small_tiles)
{
    struct plan plan = product(DTYPE_F32, 640, 640, 640);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "tiled");

    assert_string_equal(launch.kernel, "kops_gemm_f32_tiled_small");
    assert_int_equal(launch.grid[0], 100);
    /* Many of them fill the GPU with large ones. */
    plan.gemm.batch_rank = 1;
    plan.gemm.batch_count = plan.gemm.batch_shape[0] = 1000;
    launch = launch_of(OP_GEMM, &plan, addresses, "tiled");
    assert_string_equal(launch.kernel, "kops_gemm_f32_tiled_large");
    assert_int_equal(launch.grid[0], 25 * 1000);
}

static void no_launch(const struct plan *plan, const uint64_t *at, const char *variant, const char *why)
{
    struct cuda_launch launch = {.kernel = "untouched"};
    struct error e = {0};

    assert_int_equal(cuda_ops_launch(OP_GEMM, plan, at, variant, &device, &launch, &e), -1);
    assert_int_equal(e.code, ERROR_INVALID_ARGUMENT);
    if (!strstr(e.message, why))
        fail_msg("\"%s\" does not say \"%s\"", e.message, why);
    assert_string_equal(launch.kernel, "untouched");
}

PARAMS_OF(mapped_of, cuda_ops_gemm_mapped)

static void check_map(const struct cuda_launch *launch, unsigned i, uint64_t address, uint64_t inner, uint64_t outer,
                      uint64_t lead, uint32_t rows)
{
    const struct plan_map *m = &launch->maps[i].map;

    assert_int_equal(m->address, address);
    assert_int_equal(m->extents[0], inner);
    assert_int_equal(m->extents[1], outer);
    assert_int_equal(m->strides[0], 2 * lead);
    assert_int_equal(m->strides[1] % 16, 0);
    assert_int_equal(m->box[0], 64);
    assert_int_equal(m->box[1], rows);
    assert_int_equal(m->box[2], 1);
    assert_true(launch->maps[i].at % 64 == 0 && launch->maps[i].at + PLAN_MAP_BYTES <= launch->params_size);
}

TEST(hopper_describes_its_operands)
{
    struct plan plan = product(DTYPE_BF16, 4096, 3848, 1024);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "hopper");
    struct cuda_ops_gemm_mapped p = mapped_of(&launch);

    assert_string_equal(launch.kernel, "kops_gemm_bf16_hopper_128x256_kx");
    assert_string_equal(launch.variant, "hopper");
    assert_int_equal(launch.n_maps, 3);
    assert_int_equal(launch.grid[0], 132);
    assert_true(launch.shared_bytes > 4 * 48 << 10 && launch.shared_bytes <= CUDA_OPS_MAPPED_SHARED_MAX);
    check_map(&launch, 0, 0x10000, 1024, 4096, 1024, 128);
    check_map(&launch, 1, 0x20000, 3848, 1024, 3848, 64);
    check_map(&launch, 2, 0x30000, 3848, 4096, 3848, 64);
    assert_int_equal(launch.maps[0].map.type, 9);
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

static struct plan biased(struct plan plan)
{
    plan.gemm.beta = 0;
    plan.gemm.has_bias = true;
    plan.gemm.bias = (struct plan_matrix){.row = 0, .column = 1};
    plan.gemm.activation = PLAN_GELU;
    return plan;
}

TEST(a_bias_has_kernels_of_its_own)
{
    const uint64_t odd[] = {0x10000, 0x20000, 0x30002, 0x40000};
    struct plan plan = biased(product(DTYPE_BF16, 512, 256, 128));
    struct cuda_launch launch = launch_of(OP_LINEAR, &plan, addresses, NULL);
    struct cuda_ops_gemm_mapped p = mapped_of(&launch);
    struct error e;

    assert_string_equal(launch.kernel, "kops_linear_bf16_hopper_128x128_kx");
    assert_true(p.bias_address == 0x30000 && p.bias_row == 0 && p.bias_column == 1 && p.bias_pairs);
    assert_true(p.out_address == 0x40000 && p.activation == CUDA_OPS_GELU);
    launch = launch_of(OP_LINEAR, &plan, odd, NULL);
    assert_false(mapped_of(&launch).bias_pairs);
    plan.gemm.out = (struct plan_matrix){.row = 1, .column = 512};
    launch = launch_of(OP_LINEAR, &plan, addresses, NULL);
    p = mapped_of(&launch);
    assert_true(p.m == 256 && p.bias_row == 1 && p.bias_column == 0 && !p.bias_pairs);

    plan = biased(product(DTYPE_F16, 16, 4096, 4096));
    launch = launch_of(OP_LINEAR, &plan, addresses, NULL);
    assert_string_equal(launch.kernel, "kops_linear_f16_skinny_across_2");
    assert_int_equal(gemm_of(&launch).bias.address, 0x30000);
    plan.out_dtype = DTYPE_F32; /* they have none of another dtype */
    assert_string_equal(launch_of(OP_LINEAR, &plan, addresses, NULL).variant, "tiled");
    assert_int_equal(cuda_ops_launch(OP_LINEAR, &plan, addresses, "hopper", &device, &launch, &e), -1);
    assert_non_null(strstr(e.message, "out of another dtype"));
    plan = biased(product(DTYPE_F32, 256, 256, 256));
    assert_string_equal(launch_of(OP_LINEAR, &plan, addresses, NULL).variant, "tiled");
}

TEST(hopper_does_batches_and_ends_of_rows)
{
    struct plan plan = product(DTYPE_F16, 100, 101, 72);
    struct cuda_launch launch;
    struct cuda_ops_gemm_mapped p;

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
    assert_int_equal(launch.maps[0].map.extents[2], 5);
    assert_int_equal(launch.maps[0].map.strides[1], 14400);
    assert_int_equal(launch.maps[1].map.extents[2], 1);
    assert_int_equal(launch.maps[2].map.extents[2], 5);
    assert_int_equal(launch.maps[0].map.type, 6);
    assert_int_equal(launch.grid[0] % 2, 0);
}

TEST(hopper_says_what_it_cannot_do)
{
    const uint64_t odd[] = {0x10000, 0x20008, 0x30000};
    const struct cuda_ops_device others[] = {{132, CUDA_OPS_SM90}, {108, CUDA_OPS_SM80}, {40, CUDA_OPS_ANY}};
    struct plan plan = product(DTYPE_BF16, 64, 64, 64);
    struct cuda_launch launch;
    struct error e = {0};

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

TEST(few_rows_share_the_sum_among_blocks)
{
    const struct cuda_ops_device old = {132, CUDA_OPS_ANY};
    struct plan plan = product(DTYPE_F32, 16, 4096, 4096);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "skinny");
    struct cuda_ops_gemm p = gemm_of(&launch);

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
    MUST(cuda_ops_launch(OP_GEMM, &plan, addresses, "skinny", &old, &launch, &e));
    assert_string_equal(launch.kernel, "kops_gemm_f32_skinny_along_1");
    plan = product(DTYPE_F32, 17, 17, 64);
    no_launch(&plan, addresses, "skinny", "more than 16");
    plan = product(DTYPE_F32, 16, 33, 64);
    no_launch(&plan, addresses, "skinny", "boundaries");
}

TEST(small_products_are_shared_among_all_multiprocessors)
{
    const uint64_t odd[] = {0x10004, 0x20000, 0x30000};
    struct plan plan = product(DTYPE_F32, 256, 256, 256);
    struct cuda_launch launch = launch_of(OP_GEMM, &plan, addresses, "small");

    assert_string_equal(launch.kernel, "kops_gemm_f32_small_2");
    assert_int_equal(launch.grid[0], 128);
    launch = launch_of(OP_GEMM, &plan, odd, "small");
    assert_string_equal(launch.kernel, "kops_gemm_f32_small_2_any");
    plan = product(DTYPE_F32, 4096, 4096, 64);
    no_launch(&plan, addresses, "small", "4194304");
}

TEST(small_products_in_less_precision_are_of_tensor_cores)
{
    const uint64_t odd[] = {0x10004, 0x20000, 0x30000};
    const struct cuda_ops_device older = {108, CUDA_OPS_SM80}, oldest = {80, CUDA_OPS_ANY};
    struct plan plan = product(DTYPE_F32, 256, 256, 256);
    struct cuda_launch launch;

    plan.gemm.high_precision_only = false;
    launch = launch_of(OP_GEMM, &plan, addresses, "small");
    assert_string_equal(launch.kernel, "kops_gemm_tf32_small_2");
    assert_int_equal(launch.grid[0], 128);
    assert_string_equal(launch_of(OP_GEMM, &plan, odd, "small").kernel, "kops_gemm_tf32_small_2_any");
    MUST(cuda_ops_launch(OP_GEMM, &plan, addresses, "small", &older, &launch, &e));
    assert_string_equal(launch.kernel, "kops_gemm_tf32_small_1");
    MUST(cuda_ops_launch(OP_GEMM, &plan, addresses, "small", &oldest, &launch, &e));
    assert_string_equal(launch.kernel, "kops_gemm_f32_small_1");
}

TEST(the_choice_falls_on_a_variant_that_can)
{
    static const struct {
        enum dtype dtype;
        int64_t m, n, k;
        const char *variant;
    } cases[] = {{DTYPE_BF16, 4096, 4096, 4096, "hopper"}, {DTYPE_BF16, 4096, 4095, 4096, "tiled"},
                 {DTYPE_BF16, 16, 4096, 4096, "skinny"},   {DTYPE_F32, 16, 4096, 4096, "skinny"},
                 {DTYPE_F32, 256, 256, 256, "small"},      {DTYPE_F32, 4096, 4096, 4096, "tiled"},
                 {DTYPE_F64, 16, 4096, 4096, "tiled"}};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct plan plan = product(cases[i].dtype, cases[i].m, cases[i].n, cases[i].k);

        assert_string_equal(launch_of(OP_GEMM, &plan, addresses, NULL).variant, cases[i].variant);
    }
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
