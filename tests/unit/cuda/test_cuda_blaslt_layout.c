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

/* Many calls are worth it only where they are long. */
TEST(every_product_is_in_one_call)
{
    static const struct {
        int64_t batch, heads, rows;
        unsigned calls; /* 0: too many */
    } cases[] = {{32, 40, 512, 32},    {40, 32, 512, 32}, {16, 17, 8, 16}, {2, 3, 8, 2},
                 {256, 300, 256, 256}, {17, 17, 8, 0},    {32, 40, 16, 0}, {257, 300, 512, 0}};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct plan plan = scores(cases[i].batch, cases[i].heads, cases[i].rows);
        const bool strided_heads = cases[i].heads >= cases[i].batch;
        struct blaslt_layout l;

        if (!cases[i].calls) {
            MUST_FAIL(blaslt_check(&plan, &e), ERROR_INVALID_ARGUMENT, "more than 256 calls");
            continue;
        }
        MUST(blaslt_layout(&plan, NULL, &l, &e));
        assert_int_equal(l.n_calls, cases[i].calls);
        assert_int_equal(l.problem.batch_count, cases[i].batch * cases[i].heads / cases[i].calls);
        assert_int_equal(blaslt_calls(&plan), l.n_calls);
        for (unsigned n = 0; n < l.n_calls * BLASLT_OPERANDS; n++) {
            const unsigned o = n % BLASLT_OPERANDS, call = n / BLASLT_OPERANDS;
            const struct plan_matrix *m = plan_gemm_matrix(&plan.gemm, l.source[o]);

            assert_int_equal(l.problem.batch_stride[o], m->batch[strided_heads]);
            assert_int_equal(blaslt_call_offset(&l, call, (enum blaslt_operand)o),
                             2 * call * (uint64_t)m->batch[!strided_heads]);
        }
    }
}
