/* What a choice depends on, as bytes and in words. Also in builds without cuBLASLt's headers. Pure functions. */
#include <stdio.h>
#include <string.h>

#include "blaslt.h"
#include "layout.h"

int blaslt_check(const struct plan *plan, struct error *e)
{
    struct blaslt_layout layout;

    return blaslt_layout(plan, NULL, &layout, e);
}

unsigned blaslt_calls(const struct plan *plan)
{
    struct blaslt_layout layout;
    struct error ignored;

    if (plan->gemm.batch_rank < 2)
        return 1;
    return blaslt_layout(plan, NULL, &layout, &ignored) == 0 ? layout.n_calls : 1;
}

/* The precision decides whether products of pieces may serve, beta decides whether out is read, the batch whether one
 * call does, and how the bias lies who can add it: candidates of our own differ in all. */
struct problem {
    struct blaslt_problem of;
    uint32_t reads_out, calls, in_pieces, bias_alignment;
    int64_t bias_row, bias_column, bias_batch;
};

static void describe_bias(const struct plan_gemm *g, const uint64_t *addresses, struct problem *p)
{
    const uint64_t bits = addresses[PLAN_GEMM_BIAS] | 16;

    p->bias_alignment = (uint32_t)(bits & -bits);
    p->bias_row = g->m > 1 ? g->bias.row : 0;
    p->bias_column = g->n > 1 ? g->bias.column : 0;
    for (unsigned d = 0; d < g->batch_rank; d++)
        p->bias_batch = p->bias_batch * 31 + g->bias.batch[d];
}

int blaslt_problem_of(const struct plan *plan, const uint64_t *addresses, unsigned char ret[TUNING_PROBLEM_BYTES],
                      struct error *e)
{
    struct blaslt_layout layout;
    struct problem problem;

    _Static_assert(sizeof(problem) <= TUNING_PROBLEM_BYTES, "a key has room for a problem");
    if (blaslt_layout_any(plan, addresses, &layout, e) < 0)
        return -1;
    problem = (struct problem){layout.problem, plan->gemm.beta != 0, layout.n_calls,
                               plan->dtype == DTYPE_F32 && plan->gemm.in_pieces};
    if (plan->gemm.has_bias)
        describe_bias(&plan->gemm, addresses, &problem);
    memset(ret, 0, TUNING_PROBLEM_BYTES);
    memcpy(ret, &problem, sizeof(problem));
    return 0;
}

/* The smallest alignment of any operand, where it is less than what the fastest kernels want. */
static void append_alignment(const struct blaslt_problem *p, char *into, size_t size)
{
    uint32_t least = 16;

    for (unsigned o = 0; o < BLASLT_OPERANDS; o++)
        if (p->alignment[o] < least)
            least = p->alignment[o];
    if (least < 16)
        snprintf(into, size, ", aligned to %u bytes", least);
}

void blaslt_problem_text(const struct plan *plan, const uint64_t *addresses, char *into, size_t size)
{
    static const char *const activations[] = {
        [PLAN_NONE] = "", [PLAN_RELU] = " relu", [PLAN_GELU] = " gelu", [PLAN_GELU_TANH] = " gelu_tanh"};
    static const char *const scales[] = {
        [BLASLT_NO_SCALES] = "", [BLASLT_SCALE_NUMBERS] = "", [BLASLT_SCALE_VECTORS] = " scaled by rows"};
    const struct plan_gemm *g = &plan->gemm;
    struct blaslt_layout layout;
    const bool widens = plan->out_dtype != plan->dtype, two = g->has_scales && g->b_dtype != plan->dtype;
    const char *precision = "";
    struct error ignored;
    int n;

    if (blaslt_layout_any(plan, addresses, &layout, &ignored) < 0) {
        snprintf(into, size, "not a product");
        return;
    }
    if (plan->dtype == DTYPE_F32)
        precision = layout.problem.tf32 ? " medium" : g->in_pieces ? " high" : "";
    if (g->fast_sums)
        precision = " medium";
    /* In the words of the op: n, a matrix by rows; t, by columns. */
    n = snprintf(into, size, "%s%s%s%s%s%s%s %lldx%lldx%lld %c%c", dtype_name(plan->dtype), two ? " by " : "",
                 two ? dtype_name(g->b_dtype) : "", widens ? " to " : "", widens ? dtype_name(plan->out_dtype) : "",
                 scales[layout.problem.scales], precision, (long long)g->m, (long long)g->n, (long long)g->k,
                 g->a.column == 1 || g->k == 1 ? 'n' : 't', g->b.column == 1 || g->n == 1 ? 'n' : 't');
    if (g->batch_count > 1 && n > 0 && (size_t)n < size)
        n += snprintf(into + n, size - (size_t)n, " batch %llu", (unsigned long long)g->batch_count);
    if (g->beta != 0 && n > 0 && (size_t)n < size)
        n += snprintf(into + n, size - (size_t)n, " beta");
    if (g->has_bias && n > 0 && (size_t)n < size)
        n += snprintf(into + n, size - (size_t)n, " bias%s", activations[g->activation]);
    if (n > 0 && (size_t)n < size)
        append_alignment(&layout.problem, into + n, size - (size_t)n);
}
