/* Finds leading dimensions for strides, and describes problems to the tuning. Also in builds without cuBLASLt's
 * headers. */
#include "layout.h"

#include <stdio.h>
#include <string.h>

#include "blaslt.h"

#define REFUSE(e, ...) (error_set(e, ERROR_INVALID_ARGUMENT, __VA_ARGS__), error_detail_text(e, "key", "attrs.variant"))

enum { EPILOGUE_ALIGNMENT = 16, F8_ALIGNMENT = 16 /* bytes, and elements of f8 */ };

/* Tests whether the strides make a column-major matrix, and finds its leading dimension. A dimension of size 1 fits
 * with any stride. */
static bool column_major(int64_t rows, int64_t columns, int64_t row, int64_t column, int64_t *ret_ld)
{
    int64_t ld = columns > 1 ? column : rows;

    if ((rows > 1 && row != 1) || ld < rows || ld > INT32_MAX)
        return false;
    *ret_ld = ld;
    return true;
}

/* An input may be given transposed. */
static bool either_major(int64_t rows, int64_t columns, const struct plan_matrix *m, int64_t *ret_ld,
                         uint8_t *ret_transpose)
{
    *ret_transpose = 0;
    if (column_major(rows, columns, m->row, m->column, ret_ld))
        return true;
    *ret_transpose = 1;
    return column_major(columns, rows, m->column, m->row, ret_ld);
}

static struct plan_matrix transposed(const struct plan_matrix *m)
{
    struct plan_matrix t = *m;

    t.row = m->column;
    t.column = m->row;
    return t;
}

/* Whether the scales of a batch of rows are those of one larger matrix. */
static bool scales_fold(const struct plan_gemm *g)
{
    return !g->has_scales || (g->extra[0].batch[0] == g->m * g->extra[0].row && g->extra[1].batch[0] == 0);
}

/* Makes one product of a batch: where its matrices follow each other like rows of one larger matrix, and all are
 * multiplied with one matrix. */
static void fold_batch(struct plan_gemm *g)
{
    int64_t count = g->batch_shape[0];

    if (g->batch_rank != 1 || !scales_fold(g))
        return;
    if (g->b.batch[0] == 0 && g->a.batch[0] == g->m * g->a.row && g->out.batch[0] == g->m * g->out.row &&
        g->m <= INT32_MAX / count)
        g->m *= count;
    else if (!plan_gemm_extras(g) && g->a.batch[0] == 0 && g->b.batch[0] == g->n * g->b.column &&
             g->out.batch[0] == g->n * g->out.column && g->n <= INT32_MAX / count)
        g->n *= count;
    else
        return;
    g->batch_rank = 0;
}

/* Row-major out is the column-major transpose: outᵀ = bᵀ · aᵀ. */
static bool orient(const struct plan_gemm *g, struct blaslt_layout *l)
{
    struct blaslt_problem *p = &l->problem;
    struct plan_matrix at = transposed(&g->a), bt = transposed(&g->b);

    p->k = g->k;
    if (column_major(g->n, g->m, g->out.column, g->out.row, &p->ld[BLASLT_D]) &&
        either_major(g->n, g->k, &bt, &p->ld[BLASLT_A], &p->transpose_a) &&
        either_major(g->k, g->m, &at, &p->ld[BLASLT_B], &p->transpose_b)) {
        p->m = g->n;
        p->n = g->m;
        l->source[BLASLT_A] = PLAN_GEMM_B;
        l->source[BLASLT_B] = PLAN_GEMM_A;
        l->source[BLASLT_D] = plan_gemm_out(g);
        return true;
    }
    if (g->has_bias && !l->any_epilogue)
        return false;
    if (column_major(g->m, g->n, g->out.row, g->out.column, &p->ld[BLASLT_D]) &&
        either_major(g->m, g->k, &g->a, &p->ld[BLASLT_A], &p->transpose_a) &&
        either_major(g->k, g->n, &g->b, &p->ld[BLASLT_B], &p->transpose_b)) {
        p->m = g->m;
        p->n = g->n;
        l->source[BLASLT_A] = PLAN_GEMM_A;
        l->source[BLASLT_B] = PLAN_GEMM_B;
        l->source[BLASLT_D] = plan_gemm_out(g);
        return true;
    }
    return false;
}

static bool may_call(const struct blaslt_problem *p, uint64_t calls)
{
    const double operations = 2.0 * (double)p->m * (double)p->n * (double)p->k * (double)p->batch_count;

    return calls <= BLASLT_CALLS_FEW || (calls <= BLASLT_CALLS_MAX && operations >= BLASLT_CALL_OPERATIONS);
}

/* The largest batch dimension becomes the strided batch; the others become calls. `sizes` are of the plan's operands'
 * elements. */
static bool split_batch(const struct plan_gemm *g, const size_t *sizes, struct blaslt_layout *l)
{
    unsigned strided = 0;
    uint64_t calls = 1;

    for (unsigned i = 1; i < g->batch_rank; i++)
        if (g->batch_shape[i] > g->batch_shape[strided])
            strided = i;
    l->problem.batch_count = g->batch_rank ? g->batch_shape[strided] : 1;
    for (unsigned o = 0; g->batch_rank && o < BLASLT_OPERANDS; o++)
        l->problem.batch_stride[o] = plan_gemm_matrix(g, l->source[o])->batch[strided];
    for (unsigned i = 0; i < g->batch_rank; i++) {
        if (i == strided)
            continue;
        calls *= (uint64_t)g->batch_shape[i];
        if (!may_call(&l->problem, calls))
            return false;
        l->outer_shape[l->n_outer] = (uint64_t)g->batch_shape[i];
        for (unsigned o = 0; o < BLASLT_OPERANDS; o++)
            l->outer_bytes[l->n_outer][o] = plan_gemm_matrix(g, l->source[o])->batch[i] * (int64_t)sizes[l->source[o]];
        l->n_outer++;
    }
    l->n_calls = (unsigned)calls;
    return l->problem.batch_count <= INT32_MAX;
}

uint64_t blaslt_call_offset(const struct blaslt_layout *l, unsigned call, enum blaslt_operand operand)
{
    uint64_t rest = call, offset = 0;

    for (unsigned i = l->n_outer; i-- > 0; rest /= l->outer_shape[i])
        offset += rest % l->outer_shape[i] * (uint64_t)l->outer_bytes[i][operand];
    return offset;
}

static uint32_t alignment(const struct blaslt_layout *l, enum blaslt_operand o, uint64_t address, size_t element)
{
    uint64_t bits = address | 256 | (uint64_t)l->problem.batch_stride[o] * element;

    for (unsigned i = 0; i < l->n_outer; i++)
        if (l->outer_shape[i] > 1)
            bits |= (uint64_t)l->outer_bytes[i][o];
    return (uint32_t)(bits & -bits);
}

/* The library adds a vector to the columns of D, which are out's rows. Its GELU is the approximation by tanh. */
static int check_epilogue(const struct plan *plan, struct error *e)
{
    const struct plan_gemm *g = &plan->gemm;
    bool vector = (g->m == 1 || g->bias.row == 0) && (g->n == 1 || g->bias.column == 1);
    const char *why = NULL;

    for (unsigned i = 0; i < g->batch_rank; i++)
        vector = vector && g->bias.batch[i] == 0;
    if (!vector)
        why = "cublaslt adds a contiguous vector [n] to every row, and no other bias; leave the variant out";
    else if (plan->out_dtype != plan->dtype)
        why = "cublaslt takes a bias of out's dtype alone; leave the variant out";
    else if (g->activation == PLAN_GELU)
        why = "cublaslt has gelu_tanh, and no gelu by erf; leave the variant out";
    else if (g->activation == PLAN_GELU_TANH && plan->dtype == DTYPE_F64)
        why = "cublaslt's gelu_tanh is less exact than f64; leave the variant out";
    return why ? REFUSE(e, "%s", why) : 0;
}

/* The library refuses a less aligned bias when it runs. 16-bit matrices may be less aligned, but then the library
 * rounds the product before it adds the bias. */
static int check_aligned(const struct blaslt_layout *l, const struct plan *plan, const uint64_t *addresses,
                         struct error *e)
{
    const size_t size = dtype_size(plan->dtype);
    bool aligned = !addresses || addresses[PLAN_GEMM_BIAS] % EPILOGUE_ALIGNMENT == 0;

    for (unsigned o = 0; size == 2 && o < BLASLT_OPERANDS; o++)
        aligned = aligned && (uint64_t)l->problem.ld[o] * size % EPILOGUE_ALIGNMENT == 0 &&
                  (!addresses || l->problem.alignment[o] >= EPILOGUE_ALIGNMENT);
    if (aligned)
        return 0;
    return REFUSE(
        e,
        "cublaslt adds a bias where it, and rows of f16 and bf16, begin at multiples of %d bytes; leave the variant "
        "out",
        EPILOGUE_ALIGNMENT);
}

/* A scale is one number, or a vector, along a dimension of out of that size. */
static bool is_number(int64_t size, int64_t stride)
{
    return size == 1 || stride == 0;
}

static bool is_vector(int64_t size, int64_t stride)
{
    return size == 1 || stride == 1;
}

/* Returns BLASLT_NO_SCALES where the library has no such scales. */
static enum blaslt_scales scales_of(const struct plan_gemm *g)
{
    const int64_t row = g->extra[0].row, column = g->extra[1].column;

    for (unsigned d = 0; d < g->batch_rank; d++)
        if (g->extra[0].batch[d] != 0 || g->extra[1].batch[d] != 0)
            return BLASLT_NO_SCALES;
    if (is_number(g->m, row) && is_number(g->n, column))
        return BLASLT_SCALE_NUMBERS;
    return is_vector(g->m, row) && is_vector(g->n, column) ? BLASLT_SCALE_VECTORS : BLASLT_NO_SCALES;
}

/* All GPUs need both f8 matrices contiguous along k, in whole pieces of 16. */
static int check_f8(const struct plan_gemm *g, enum dtype a_dtype, const struct blaslt_layout *l, struct error *e)
{
    const struct blaslt_problem *p = &l->problem;
    const char *why = NULL;

    if (g->all_in_f32)
        why = "cublaslt does not add every product in f32, which precision \"highest\" asks for; leave the variant out";
    else if (a_dtype == DTYPE_F8_E5M2 && g->b_dtype == DTYPE_F8_E5M2)
        why = "cublaslt does not multiply f8_e5m2 by f8_e5m2; leave the variant out";
    else if (!p->transpose_a || p->transpose_b)
        why = "cublaslt multiplies f8 where rows of a and columns of b are contiguous; leave the variant out";
    else if (p->m % F8_ALIGNMENT || p->k % F8_ALIGNMENT || p->ld[BLASLT_A] % F8_ALIGNMENT ||
             p->ld[BLASLT_B] % F8_ALIGNMENT)
        why = "cublaslt multiplies f8 where the inner size, and the length of a row of out, are multiples of 16; leave "
              "the variant out";
    else if (p->scales == BLASLT_NO_SCALES)
        why = "cublaslt takes one scale for all of each input, or contiguous ones for each row of a and each column of "
              "b; leave the variant out";
    return why ? REFUSE(e, "%s", why) : 0;
}

static int check_f8_aligned(const struct blaslt_layout *l, size_t out_size, const uint64_t *addresses, struct error *e)
{
    const struct blaslt_problem *p = &l->problem;
    bool aligned = (uint64_t)p->ld[BLASLT_D] * out_size % F8_ALIGNMENT == 0;

    for (unsigned o = 0; addresses && o < BLASLT_OPERANDS; o++)
        aligned = aligned && p->alignment[o] >= F8_ALIGNMENT;
    for (unsigned i = 0; addresses && p->scales == BLASLT_SCALE_VECTORS && i < 2; i++)
        aligned = aligned && addresses[PLAN_GEMM_SCALE_A + i] % F8_ALIGNMENT == 0;
    if (aligned)
        return 0;
    return REFUSE(
        e,
        "cublaslt multiplies f8 where matrices, their rows, and scales that are vectors begin at multiples of %d "
        "bytes; leave the variant out",
        F8_ALIGNMENT);
}

static int lay_out(const struct plan *plan, const uint64_t *addresses, bool any_epilogue,
                   struct blaslt_layout *ret_layout, struct error *e)
{
    size_t sizes[PLAN_MAX_OPERANDS] = {0};
    struct blaslt_problem *p = &ret_layout->problem;
    struct plan_gemm g;

    if (plan->kind != PLAN_GEMM || plan_is_empty(plan))
        return error_set(e, ERROR_INVALID_ARGUMENT, "cublaslt multiplies matrices only");
    g = plan->gemm;
    for (unsigned i = 0; i <= plan_gemm_out(&g); i++)
        sizes[i] = dtype_size(plan_dtype(plan, plan_gemm_out(&g), i));
    memset(ret_layout, 0, sizeof(*ret_layout));
    ret_layout->any_epilogue = any_epilogue;
    fold_batch(&g);
    if (g.k == 0 || g.k > INT32_MAX || g.m > INT32_MAX || g.n > INT32_MAX)
        return REFUSE(e, "cublaslt takes dimensions from 1 to 2^31 - 1; leave the variant out");
    if (g.has_bias && !any_epilogue && check_epilogue(plan, e) < 0)
        return -1;
    if (!orient(&g, ret_layout))
        return REFUSE(
            e, "cublaslt needs matrices with stride 1 along their rows or columns, and no broadcast inside one; leave "
               "the variant out");
    if (!split_batch(&g, sizes, ret_layout))
        return REFUSE(
            e,
            "cublaslt would need more than %d calls for these batch dimensions, or more than %d small ones; leave the "
            "variant out",
            BLASLT_CALLS_MAX, BLASLT_CALLS_FEW);
    p->dtype = (uint8_t)plan_dtype(plan, plan_gemm_out(&g), ret_layout->source[BLASLT_A]);
    p->b_dtype = (uint8_t)plan_dtype(plan, plan_gemm_out(&g), ret_layout->source[BLASLT_B]);
    p->out_dtype = (uint8_t)plan->out_dtype;
    p->tf32 = plan->dtype == DTYPE_F32 && !g.high_precision_only;
    p->has_bias = g.has_bias;
    p->activation = (uint8_t)g.activation;
    p->scales = (uint8_t)(g.has_scales ? scales_of(&g) : BLASLT_NO_SCALES);
    p->fast_sums = g.fast_sums;
    if (g.has_scales && check_f8(&g, plan->dtype, ret_layout, e) < 0)
        return -1;
    for (unsigned o = 0; addresses && o < BLASLT_OPERANDS; o++)
        p->alignment[o] = alignment(ret_layout, (enum blaslt_operand)o, addresses[ret_layout->source[o]],
                                    sizes[ret_layout->source[o]]);
    if (g.has_scales)
        return check_f8_aligned(ret_layout, dtype_size(plan->out_dtype), addresses, e);
    return p->has_bias && !any_epilogue ? check_aligned(ret_layout, plan, addresses, e) : 0;
}

int blaslt_layout(const struct plan *plan, const uint64_t *addresses, struct blaslt_layout *ret_layout, struct error *e)
{
    return lay_out(plan, addresses, false, ret_layout, e);
}

/* ---- problems as bytes, and in words ---- */

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

/* The key of a choice. Our own candidates depend on more than the library's do: whether f32 may be split into pieces,
 * whether out is read, the number of calls, and the layout of the bias. */
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
    if (lay_out(plan, addresses, true, &layout, e) < 0)
        return -1;
    problem = (struct problem){layout.problem, plan->gemm.beta != 0, layout.n_calls,
                               plan->dtype == DTYPE_F32 && plan->gemm.in_pieces};
    if (plan->gemm.has_bias)
        describe_bias(&plan->gemm, addresses, &problem);
    memset(ret, 0, TUNING_PROBLEM_BYTES);
    memcpy(ret, &problem, sizeof(problem));
    return 0;
}

/* Names the smallest alignment, where the fastest kernels need more. */
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

    if (lay_out(plan, addresses, true, &layout, &ignored) < 0) {
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
