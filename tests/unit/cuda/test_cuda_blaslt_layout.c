/* How batches that no single stride describes become calls of cuBLASLt. */
#include "blaslt/blaslt.h"
#include "blaslt/layout.h"
#include "tests/support/unit.h"

enum { WIDTH = 64 };

/* Attention's scores, of `batch` times `heads` products q · kᵀ: q and k are [batch, rows, heads, WIDTH], out is [batch,
 * heads, rows, rows]. */
static struct plan scores(int64_t batch, int64_t heads, int64_t rows)
{
    struct plan plan = {.kind = PLAN_GEMM, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16};
    struct plan_gemm *g = &plan.gemm;
    const int64_t row = heads * WIDTH;

    *g = (struct plan_gemm){.m = rows, .n = rows, .k = WIDTH, .batch_rank = 2, .alpha = 1};
    g->batch_shape[0] = batch;
    g->batch_shape[1] = heads;
    g->batch_count = (uint64_t)(batch * heads);
    g->a = (struct plan_matrix){.row = row, .column = 1, .batch = {rows * row, WIDTH}};
    g->b = (struct plan_matrix){.row = 1, .column = row, .batch = {rows * row, WIDTH}};
    g->out = (struct plan_matrix){.row = rows, .column = 1, .batch = {heads * rows * rows, rows * rows}};
    return plan;
}

TEST(every_product_is_in_one_call)
{
    static const int64_t shapes[][3] = {{32, 40, 512}, {40, 32, 512}, {16, 17, 8}, {2, 3, 8}, {256, 300, 256}};

    for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const int64_t batch = shapes[i][0], heads = shapes[i][1];
        const struct plan plan = scores(batch, heads, shapes[i][2]);
        const bool strided_heads = heads >= batch;
        struct blaslt_layout l;

        MUST(blaslt_layout(&plan, NULL, &l, &e));
        assert_int_equal(l.n_calls, strided_heads ? batch : heads);
        assert_int_equal(l.problem.batch_count, strided_heads ? heads : batch);
        assert_int_equal(blaslt_calls(&plan), l.n_calls);
        for (unsigned call = 0; call < l.n_calls; call++)
            for (unsigned o = 0; o < BLASLT_OPERANDS; o++) {
                const struct plan_matrix *m = plan_gemm_matrix(&plan.gemm, l.source[o]);

                assert_int_equal(l.problem.batch_stride[o], m->batch[strided_heads]);
                assert_int_equal(blaslt_call_offset(&l, call, (enum blaslt_operand)o),
                                 2 * call * (uint64_t)m->batch[!strided_heads]);
            }
    }
}

TEST(many_calls_are_worth_it_only_where_they_are_long)
{
    static const int64_t shapes[][3] = {{17, 17, 8}, {32, 40, 16}, {257, 300, 512}};

    for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct plan plan = scores(shapes[i][0], shapes[i][1], shapes[i][2]);
        struct error e;

        assert_int_equal(blaslt_check(&plan, &e), -1);
        assert_non_null(strstr(e.message, "more than 256 calls"));
    }
}

TEST(rows_begin_where_the_batches_let_them)
{
    struct plan plan = scores(32, 40, 512);
    const uint64_t addresses[STEP_MAX_OPERANDS] = {0};
    struct blaslt_layout l;

    MUST(blaslt_layout(&plan, addresses, &l, &e));
    for (unsigned o = 0; o < BLASLT_OPERANDS; o++)
        assert_int_equal(l.problem.alignment[o], o == BLASLT_D ? 256 : 128);
    plan.gemm.a.batch[0] += 4; /* bf16 */
    MUST(blaslt_layout(&plan, addresses, &l, &e));
    for (unsigned o = 0; o < BLASLT_OPERANDS; o++)
        assert_int_equal(l.problem.alignment[o], l.source[o] == PLAN_GEMM_A ? 8 : o == BLASLT_D ? 256 : 128);
}
