/* Cases of gemm, of linear and of scaled_gemm. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "ops/params_scaled.h"
#include "ops/plan_launch.h"
#include "values.h"

enum { A, B, BIAS, SCALE_A = BIAS, SCALE_B };

/* The number of a case's output, behind its inputs. */
static unsigned out_of(const struct lab_case *c)
{
    return c->call.op->n_inputs;
}

static bool is_linear(const struct lab_case *c)
{
    return c->call.op->id == OP_LINEAR;
}

static bool is_scaled(const struct lab_case *c)
{
    return c->call.op->id == OP_SCALED_GEMM;
}

/* As the ops' declarations have it: |got − exact| ≤ rtol · |exact| + scaled · Σ|terms| + atol. */
static const struct tolerance {
    double rtol, scaled, atol;
} tolerances[] = {
    [DTYPE_F32] = {3.6e-7, 2.0e-5, 0},
    [DTYPE_F64] = {2.3e-16, 4.0e-14, 0},
    [DTYPE_F16] = {9.8e-4, 2.0e-5, 6.0e-8},
    [DTYPE_BF16] = {7.9e-3, 2.0e-5, 0},
};
/* Where operands are rounded to tf32: of each product 2 · 2^-11. Cut off, they would be off by twice as much. */
static const double TF32_SCALED = 1.0e-3;

/* Extents: mostly ordinary, sometimes 1, around a tile's edge, or with whole 16-byte pieces. */
static int64_t random_extent(struct lab_random *r, int64_t scale)
{
    switch (lab_random(r) % 8) {
    case 0:
        return 1;
    case 1:
        return lab_random_between(r, 1, 17);
    case 2:
        return 64 + lab_random_between(r, -1, 1);
    case 3:
    case 4:
        return lab_random_between(r, 1, scale / 8 + 1) * 8;
    default:
        return lab_random_between(r, 1, scale);
    }
}

static void set_matrix(struct tensor *t, enum dtype dtype, unsigned batch_rank, const int64_t *batch, int64_t rows,
                       int64_t columns, bool transposed)
{
    t->dtype = dtype;
    t->rank = batch_rank + 2;
    memcpy(t->shape, batch, batch_rank * sizeof(batch[0]));
    t->shape[batch_rank] = transposed ? columns : rows;
    t->shape[batch_rank + 1] = transposed ? rows : columns;
}

/* Any tensor that broadcasts to out. */
static void set_bias(struct tensor *t, enum dtype dtype, const struct tensor *out, struct lab_random *r)
{
    const unsigned first = lab_random(r) % 2 ? out->rank - 1 : (unsigned)lab_random_between(r, 0, out->rank);

    t->dtype = dtype;
    t->rank = out->rank - first;
    for (unsigned d = 0; d < t->rank; d++)
        t->shape[d] = lab_random(r) % 4 ? out->shape[first + d] : 1;
}

/* One number, or one for each row (each column), of any batches. */
static void set_scale(struct tensor *t, const struct tensor *out, bool of_rows, struct lab_random *r)
{
    const unsigned repeated = out->rank - (of_rows ? 1 : 2);
    const unsigned first = lab_random(r) % 2 ? out->rank - 2 : (unsigned)lab_random_between(r, 0, out->rank);

    t->dtype = DTYPE_F32;
    t->rank = out->rank - first;
    for (unsigned d = 0; d < t->rank; d++)
        t->shape[d] = first + d != repeated && lab_random(r) % 4 ? out->shape[first + d] : 1;
}

/* Any numbers up to 448: sums stay below what f16 has. */
static void fill_f8(struct lab_array *array, struct lab_random *r)
{
    const unsigned numbers = array->tensor.dtype == DTYPE_F8_E4M3 ? 0x7f : 0x60;

    for (size_t i = 0; i < array->size; i++)
        array->host[i] = (unsigned char)(lab_random(r) % numbers | (lab_random(r) % 2 ? 0x80 : 0));
}

/* Powers of two and others, that keep sums as small. */
static void shrink_scales(struct lab_array *array)
{
    for (size_t i = 0; i < array->size / sizeof(float); i++)
        value_set(DTYPE_F32, array->host, i, value_get(DTYPE_F32, array->host, i) * 0x1p-9);
}

static bool reads_out(const struct lab_case *c)
{
    return !is_linear(c) && !is_scaled(c) && c->call.attrs[GEMM_BETA].f != 0;
}

static bool is_medium(const struct lab_case *c)
{
    return c->call.op->id == OP_GEMM && c->arrays[A].tensor.dtype == DTYPE_F32 &&
           c->call.attrs[GEMM_PRECISION].choice == GEMM_PRECISION_MEDIUM;
}

static void fill_array(struct lab_case *c, unsigned t, struct lab_random *r)
{
    const bool out = t == out_of(c);
    const enum lab_layout layout = (enum lab_layout)(lab_random(r) % (out ? LAYOUT_EXPANDED : LAYOUT_COUNT));

    lab_array_make(&c->arrays[t], r, lab_random(r) % 2 ? LAYOUT_CONTIGUOUS : layout, out);
    if (is_scaled(c) && t <= B)
        fill_f8(&c->arrays[t], r);
    else
        lab_array_fill(&c->arrays[t], r, false);
    if (is_scaled(c) && (t == SCALE_A || t == SCALE_B))
        shrink_scales(&c->arrays[t]);
    if (out && !reads_out(c))
        memset(c->arrays[t].host, 0xff, c->arrays[t].size); /* NaN: reading it would show */
    c->call.tensors[t] = &c->arrays[t].tensor;
}

void case_gemm(struct lab_case *c, struct lab_random *r, enum dtype dtype, int64_t scale)
{
    static const double factors[] = {0, 0, 1, -1.5, 0.5};
    const int64_t m = random_extent(r, scale), n = random_extent(r, scale);
    const int64_t k = lab_random(r) % 16 == 0 ? 0 : random_extent(r, scale);
    const bool trans_a = lab_random(r) % 2, trans_b = lab_random(r) % 2;
    const unsigned batch_rank = lab_random(r) % 3 ? 0 : (unsigned)lab_random_between(r, 1, 3);
    const bool wide = dtype_size(dtype) == 2 && lab_random(r) % 3 == 0, f8 = dtype_size(dtype) == 1;
    static const enum dtype f8_outs[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    enum dtype b_dtype = dtype, out_dtype = wide ? DTYPE_F32 : dtype;
    int64_t batch[3];

    memset(c, 0, sizeof(*c));
    c->call.op = op_get(f8 ? OP_SCALED_GEMM : lab_random(r) % 2 ? OP_GEMM : OP_LINEAR);
    if (f8) {
        b_dtype = lab_random(r) % 2 ? DTYPE_F8_E4M3 : DTYPE_F8_E5M2;
        out_dtype = f8_outs[lab_random(r) % 3];
    }
    c->in_place = -1;
    c->call.attrs[GEMM_TRANS_A].b = trans_a;
    c->call.attrs[GEMM_TRANS_B].b = trans_b;
    if (!f8)
        c->call.attrs[GEMM_ALPHA].f = lab_random(r) % 2 ? 1 : factors[lab_random(r) % 5];
    if (f8) {
        c->call.attrs[SCALED_GEMM_PRECISION].choice = SCALED_GEMM_PRECISION_HIGHEST;
    } else if (is_linear(c)) {
        c->call.attrs[LINEAR_ACTIVATION].choice = lab_random(r) % 4;
        c->call.attrs[LINEAR_PRECISION].choice = LINEAR_PRECISION_HIGHEST;
    } else {
        c->call.attrs[GEMM_BETA].f = factors[lab_random(r) % 5];
        c->call.attrs[GEMM_PRECISION].choice = lab_random(r) % 2 ? GEMM_PRECISION_HIGHEST : GEMM_PRECISION_MEDIUM;
    }
    for (unsigned d = 0; d < batch_rank; d++)
        batch[d] = lab_random_between(r, 1, 3);
    set_matrix(&c->arrays[A].tensor, dtype, batch_rank, batch, m, k, trans_a);
    set_matrix(&c->arrays[B].tensor, b_dtype, batch_rank, batch, k, n, trans_b);
    set_matrix(&c->arrays[out_of(c)].tensor, out_dtype, batch_rank, batch, m, n, false);
    if (batch_rank && lab_random(r) % 2)
        c->arrays[lab_random(r) % 2].tensor.shape[lab_random(r) % batch_rank] = 1;
    for (unsigned d = 0; d < batch_rank; d++) {
        /* A dimension that no input has must not be in out. */
        if (c->arrays[A].tensor.shape[d] == 1 && c->arrays[B].tensor.shape[d] == 1)
            c->arrays[out_of(c)].tensor.shape[d] = 1;
    }
    if (is_linear(c))
        set_bias(&c->arrays[BIAS].tensor, dtype, &c->arrays[out_of(c)].tensor, r);
    for (unsigned t = SCALE_A; f8 && t <= SCALE_B; t++)
        set_scale(&c->arrays[t].tensor, &c->arrays[out_of(c)].tensor, t == SCALE_A, r);
    for (unsigned t = A; t <= out_of(c); t++)
        fill_array(c, t, r);
}

/* An operand as doubles, with the strides of the matrix after its transposition. */
struct matrix {
    const struct tensor *tensor;
    int64_t row, column;
    double *values; /* of the whole memory */
};

static int make_matrix(const struct lab_array *array, bool transposed, struct matrix *ret)
{
    const struct tensor *t = &array->tensor;
    const size_t n = array->size / dtype_size(t->dtype);

    ret->tensor = t;
    ret->row = t->strides[t->rank - (transposed ? 1 : 2)];
    ret->column = t->strides[t->rank - (transposed ? 2 : 1)];
    ret->values = malloc((n + 1) * sizeof(ret->values[0]));
    if (!ret->values)
        return -1;
    for (size_t i = 0; i < n; i++)
        ret->values[i] = value_get(t->dtype, array->host, i);
    return 0;
}

/* Element (0, 0) of the batch that out's index is in. */
static const double *batch_of(const struct matrix *x, const int64_t *index)
{
    const struct tensor *t = x->tensor;
    uint64_t at = t->offset / dtype_size(t->dtype);

    for (unsigned d = 0; d + 2 < t->rank; d++)
        at += t->shape[d] == 1 ? 0 : (uint64_t)(index[d] * t->strides[d]);
    return x->values + at;
}

struct reference {
    double exact, bound, bound_tf32; /* of each element of out, in index order */
};

static double activated(double x, unsigned activation)
{
    switch (activation) {
    case LINEAR_ACTIVATION_RELU:
        return x < 0 ? 0 : x;
    case LINEAR_ACTIVATION_GELU:
        return x / 2 * (1 + erf(x / sqrt(2)));
    case LINEAR_ACTIVATION_GELU_TANH:
        return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x)));
    default:
        return x;
    }
}

/* The element of the bias, or of a scale, that broadcasts to out's at `index`. */
static double repeated_at(const struct lab_case *c, unsigned operand, const int64_t *index)
{
    const struct tensor *t = c->call.tensors[operand], *out = c->call.tensors[out_of(c)];
    int64_t own[TENSOR_MAX_RANK];

    for (unsigned d = 0; d < t->rank; d++)
        own[d] = t->shape[d] == 1 ? 0 : index[out->rank - t->rank + d];
    return value_get(t->dtype, c->arrays[operand].host, lab_element(t, own));
}

static struct reference reference_of(const struct lab_case *c, const struct matrix *a, const struct matrix *b,
                                     int64_t k, const int64_t *index)
{
    const double beta = reads_out(c) ? c->call.attrs[GEMM_BETA].f : 0;
    const double alpha =
        !is_scaled(c) ? c->call.attrs[GEMM_ALPHA].f : repeated_at(c, SCALE_A, index) * repeated_at(c, SCALE_B, index);
    const struct tensor *out = c->call.tensors[out_of(c)];
    const struct tolerance *tolerance = &tolerances[out->dtype];
    const double *row = batch_of(a, index) + index[out->rank - 2] * a->row;
    const double *column = batch_of(b, index) + index[out->rank - 1] * b->column;
    double sum = 0, magnitude = 0;
    struct reference r;

    for (int64_t l = 0; l < k; l++) {
        const double term = row[l * a->column] * column[l * b->row];

        sum += term;
        magnitude += fabs(term);
    }
    r.exact = alpha * sum;
    magnitude *= fabs(alpha);
    if (beta != 0) {
        const double before = value_get(out->dtype, c->arrays[out_of(c)].host, lab_element(out, index));

        r.exact += beta * before;
        magnitude += fabs(beta * before);
    }
    if (is_linear(c)) {
        r.exact = activated(r.exact + repeated_at(c, BIAS, index), c->call.attrs[LINEAR_ACTIVATION].choice);
        magnitude += fabs(repeated_at(c, BIAS, index));
    }
    r.bound = tolerance->rtol * fabs(r.exact) + tolerance->scaled * magnitude + tolerance->atol;
    r.bound_tf32 = r.bound + TF32_SCALED * magnitude;
    return r;
}

static struct reference *make_reference(const struct lab_case *c)
{
    const bool trans_a = c->call.attrs[GEMM_TRANS_A].b, trans_b = c->call.attrs[GEMM_TRANS_B].b;
    const struct tensor *out = c->call.tensors[out_of(c)], *in = c->call.tensors[A];
    const int64_t k = in->shape[in->rank - (trans_a ? 2 : 1)];
    struct matrix a = {0}, b = {0};
    struct reference *all = malloc(out->count * sizeof(*all)), *next = all;
    int64_t index[TENSOR_MAX_RANK] = {0};

    if (!all || make_matrix(&c->arrays[A], trans_a, &a) < 0 || make_matrix(&c->arrays[B], trans_b, &b) < 0) {
        free(all);
        all = NULL;
        goto free_matrices;
    }
    do {
        *next++ = reference_of(c, &a, &b, k, index);
    } while (lab_next_index(out->shape, out->rank, index));
free_matrices:
    free(a.values);
    free(b.values);
    return all;
}

static void describe(struct lab_case *c, const char *kernel, const char *what)
{
    const union op_attr_value *attrs = c->call.attrs;
    size_t n = (size_t)snprintf(c->text, sizeof(c->text), "%s %s trans %d%d alpha %g ", kernel, what,
                                attrs[GEMM_TRANS_A].b, attrs[GEMM_TRANS_B].b, is_scaled(c) ? 1 : attrs[GEMM_ALPHA].f);

    if (is_medium(c) && n < sizeof(c->text))
        n += (size_t)snprintf(c->text + n, sizeof(c->text) - n, "medium ");
    if (is_linear(c) && n < sizeof(c->text))
        n += (size_t)snprintf(c->text + n, sizeof(c->text) - n, "activation %u", attrs[LINEAR_ACTIVATION].choice);
    else if (reads_out(c) && n < sizeof(c->text))
        n += (size_t)snprintf(c->text + n, sizeof(c->text) - n, "beta %g", attrs[GEMM_BETA].f);

    for (unsigned t = A; t <= out_of(c) && n + 8 < sizeof(c->text); t++) {
        n += (size_t)snprintf(c->text + n, sizeof(c->text) - n, "; ");
        n += (size_t)lab_array_describe(&c->arrays[t], c->text + n, sizeof(c->text) - n);
    }
}

static int compare(struct lab_case *c, const struct cuda_launch *launch, const struct reference *reference,
                   unsigned char *got)
{
    const struct lab_array *array = &c->arrays[out_of(c)];
    const struct tensor *out = c->call.tensors[out_of(c)];
    const size_t size = dtype_size(out->dtype);
    int64_t index[TENSOR_MAX_RANK] = {0};
    const bool tf32 = strstr(launch->kernel, "_tf32_") != NULL;
    char what[160];

    do {
        const size_t at = lab_element(out, index);
        const double y = value_get(out->dtype, got, at), bound = tf32 ? reference->bound_tf32 : reference->bound;

        if (!(fabs(y - reference->exact) <= bound)) {
            snprintf(what, sizeof(what), "wrong at [%lld,%lld]: %.9g for %.9g (bound %.3g)",
                     (long long)index[out->rank - 2], (long long)index[out->rank - 1], y, reference->exact, bound);
            describe(c, launch->kernel, what);
            return -1;
        }
        memcpy(got + at * size, array->host + at * size, size);
        reference++;
    } while (lab_next_index(out->shape, out->rank, index));
    if (memcmp(got, array->host, array->size) != 0) {
        describe(c, launch->kernel, "wrote outside of out");
        return -1;
    }
    return 0;
}

static int check_launch(struct lab_case *c, const struct lab_machine *m, const struct cuda_launch *launch,
                        const struct reference *reference, unsigned char *got)
{
    const struct lab_array *out = &c->arrays[out_of(c)];

    if (m->write(m->context, out->address, out->host, out->size) < 0 || m->launch(m->context, launch) < 0 ||
        m->read(m->context, got, out->address, out->size) < 0) {
        describe(c, launch->kernel, "did not run");
        return -1;
    }
    return compare(c, launch, reference, got);
}

/* How many blocks share the sum over k, which the names of these kernels tell. */
static unsigned split_of(const struct cuda_launch *launch)
{
    const char *number = "1";

    for (const char *next = launch->kernel; (next = strchr(next, '_')) != NULL; next++)
        if (next[1] >= '1' && next[1] <= '8' && (next[2] == '_' || next[2] == '\0'))
            number = next + 1;
    return (unsigned)(*number - '0');
}

/* Every other variant that can do the product, those that share the sum also with blocks that take several tiles.
 * Returns how many. */
static int check_variants(struct lab_case *c, const struct lab_machine *m, const struct plan *plan,
                          const uint64_t *addresses, const struct reference *reference, unsigned char *got)
{
    const char *const *variants = cuda_ops_variants(c->call.op->id, plan->dtype, m->device.level);
    int ways = 0;

    for (; *variants; variants++) {
        const bool shares = strcmp(*variants, "skinny") == 0 || strcmp(*variants, "small") == 0;
        struct cuda_launch launch;
        struct error e;

        if (strcmp(*variants, "tiled") == 0 ||
            cuda_ops_launch(c->call.op->id, plan, addresses, *variants, &m->device, &launch, &e) < 0)
            continue;
        if (check_launch(c, m, &launch, reference, got) < 0)
            return -1;
        ways++;
        if (!shares)
            continue;
        launch.grid[0] = (launch.grid[0] / split_of(&launch) + 2) / 3 * split_of(&launch);
        if (check_launch(c, m, &launch, reference, got) < 0)
            return -1;
        ways++;
    }
    return ways;
}

/* The tiled kernels: the launcher's choice, then every tile with and without 16-byte pieces, the first on a grid that
 * is too small. */
static int check_tiles(struct lab_case *c, const struct lab_machine *m, const struct plan *plan,
                       const uint64_t *addresses, const struct reference *reference, unsigned char *got)
{
    const struct cuda_ops_gemm_config *configs =
        is_scaled(c) ? cuda_ops_scaled_configs() : cuda_ops_gemm_configs(plan->dtype);
    struct cuda_ops_gemm_scaled scaled = {0};
    struct cuda_launch launch;
    struct cuda_ops_gemm p;
    struct error e;
    bool wide;
    int ways = 1;

    if (cuda_ops_launch(c->call.op->id, plan, addresses, "tiled", &m->device, &launch, &e) < 0) {
        describe(c, e.message, "refused");
        return -1;
    }
    if (check_launch(c, m, &launch, reference, got) < 0)
        return -1;
    wide = !strstr(launch.kernel, "_any");
    memcpy(&p, launch.params, sizeof(p));
    if (is_scaled(c))
        memcpy(&scaled, launch.params, sizeof(scaled));
    for (unsigned i = 0; i < CUDA_OPS_GEMM_CONFIGS; i++) {
        for (int pieces = 0; pieces <= (wide ? 1 : 0); pieces++) {
            if (is_scaled(c))
                cuda_ops_set_scaled(&launch, &scaled, &configs[i], pieces);
            else
                cuda_ops_set_gemm(&launch, &p, &configs[i], pieces);
            if (i == 0)
                launch.grid[0] = (launch.grid[0] + 1) / 2;
            if (check_launch(c, m, &launch, reference, got) < 0)
                return -1;
            ways++;
        }
    }
    return ways;
}

static int check_ways(struct lab_case *c, const struct lab_machine *m, const struct plan *plan,
                      const struct reference *reference, unsigned char *got)
{
    uint64_t addresses[PLAN_MAX_OPERANDS];
    int tiles, others;

    for (unsigned t = A; t <= out_of(c); t++)
        addresses[t] = lab_array_first(&c->arrays[t]);
    tiles = check_tiles(c, m, plan, addresses, reference, got);
    others = tiles < 0 ? -1 : check_variants(c, m, plan, addresses, reference, got);
    return others < 0 ? -1 : tiles + others;
}

int case_check_gemm(struct lab_case *c, const struct lab_machine *m)
{
    struct lab_array *out = &c->arrays[out_of(c)];
    struct plan plan = {.dtype = c->arrays[A].tensor.dtype};
    struct reference *reference = make_reference(c);
    unsigned char *got = malloc(out->size + 1);
    struct error e;
    int ways = -1;

    snprintf(c->text, sizeof(c->text), "out of memory");
    if (!reference || !got)
        goto free_copies;
    for (unsigned t = A; t <= out_of(c); t++) {
        if (lab_array_upload(&c->arrays[t], m) < 0)
            goto unload;
    }
    if (op_plan(&c->call, &plan, &e) < 0) {
        describe(c, e.message, "not planned");
        goto unload;
    }
    ways = check_ways(c, m, &plan, reference, got);
unload:
    for (unsigned t = A; t <= out_of(c); t++)
        lab_array_unload(&c->arrays[t], m);
free_copies:
    free(reference);
    free(got);
    return ways;
}
