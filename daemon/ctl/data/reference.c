#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "proto/generated/tolerances.h"

bool reference_tolerance(const char *op, enum kops_dtype dtype, const char *precision, struct tolerance *ret)
{
    static const struct {
        const char *op;
        enum kops_dtype dtype;
        const char *precision;
        struct tolerance tolerance;
    } declared[] = {
#define X(name, DTYPE, precision, rtol, scaled, atol) {name, KOPS_##DTYPE, precision, {rtol, scaled, atol}},
        KOPS_TOLERANCES(X)
#undef X
    };
    bool found = false;

    /* The usual tolerance where the precision has none of its own. */
    for (size_t i = 0; i < sizeof(declared) / sizeof(declared[0]); i++) {
        const bool own = declared[i].precision[0];

        if (strcmp(declared[i].op, op) != 0 || declared[i].dtype != dtype ||
            (own && strcmp(declared[i].precision, precision) != 0))
            continue;
        if (!found || own)
            *ret = declared[i].tolerance;
        found = true;
    }
    return found;
}

/* Counts one element. */
static void report_element(struct report *r, const struct tolerance *t, uint64_t at, double got, double expected,
                           double scale)
{
    double allowed = t->rtol * fabs(expected) + t->scaled * scale + t->atol, error = fabs(got - expected);

    r->checked++;
    if (error == 0)
        return;
    if (error <= allowed) {
        if (error / allowed > r->worst)
            r->worst = error / allowed;
        return;
    }
    if (!r->wrong++) {
        r->at = at;
        r->got = got;
        r->expected = expected;
    }
    r->worst = allowed > 0 && error / allowed > r->worst ? error / allowed : r->worst > 0 ? r->worst : (double)INFINITY;
}

/* ---- elementwise ops ---- */

static bool broadcast(struct reference_case *c, const char **ret_why)
{
    c->out.rank = 0;
    for (size_t i = 0; i < c->n_inputs; i++)
        if (c->inputs[i].rank > c->out.rank)
            c->out.rank = c->inputs[i].rank;
    for (unsigned d = 0; d < c->out.rank; d++) {
        int64_t size = 1;

        for (size_t i = 0; i < c->n_inputs; i++) {
            const struct kops_tensor *t = &c->inputs[i];
            int64_t own = d + t->rank < c->out.rank ? 1 : t->shape[d + t->rank - c->out.rank];

            if (own != 1 && size != 1 && own != size) {
                *ret_why = "the shapes do not broadcast";
                return false;
            }
            if (own != 1)
                size = own;
        }
        c->out.shape[d] = size;
    }
    return true;
}

static double one_flop_each(const struct reference_case *c)
{
    return data_is_float(c->dtype) ? (double)kops_tensor_count(&c->out) : (double)NAN;
}

static double two_flops_each(const struct reference_case *c)
{
    return 2 * one_flop_each(c);
}

/* The element of an input, which broadcasts to out, that element `at` of out comes from. */
static uint64_t reference_source(const struct kops_tensor *in, const struct kops_tensor *out, uint64_t at)
{
    uint64_t index = 0, stride = 1;

    for (unsigned d = 0; d < in->rank; d++) {
        unsigned own = in->rank - 1 - d;
        uint64_t size = (uint64_t)out->shape[out->rank - 1 - d], place = at % size;

        at /= size;
        if (in->shape[own] != 1)
            index += place * stride;
        stride *= (uint64_t)in->shape[own];
    }
    return index;
}

static bool same_shape(const struct kops_tensor *a, const struct kops_tensor *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0]));
}

static void check_elements(const struct reference *reference, const struct reference_case *c, const struct tolerance *t,
                           struct report *ret)
{
    double values[CASE_MAX_INPUTS];

    ret->total = (uint64_t)kops_tensor_count(&c->out);
    for (uint64_t at = 0; at < ret->total; at++) {
        double scale = 0;

        for (size_t i = 0; i < c->n_inputs; i++) {
            bool direct = same_shape(&c->inputs[i], &c->out);

            values[i] = data_get(c->data[i], direct ? at : reference_source(&c->inputs[i], &c->out, at), c->dtype);
            scale += fabs(values[i]);
        }
        report_element(ret, t, at, data_get(c->after, at, c->dtype), data_wrap(reference->compute(values), c->dtype),
                       scale);
    }
}

static double add(const double *inputs)
{
    return inputs[0] + inputs[1];
}

static double square(const double *inputs)
{
    return inputs[0] * inputs[0];
}

static double add_square(const double *inputs)
{
    return (inputs[0] + inputs[1]) * (inputs[0] + inputs[1]);
}

static double sub_square(const double *inputs)
{
    return (inputs[0] - inputs[1]) * (inputs[0] - inputs[1]);
}

static double copy(const double *inputs)
{
    return inputs[0];
}

/* ---- products: small ones are checked whole; of big ones a random sample, since they would take minutes ---- */

enum { LANES = 8 };

/* Multiplications: a whole check takes at most the first, a sample at most the second. */
static const uint64_t whole_work = UINT64_C(1) << 28, sample_work = UINT64_C(1) << 25;

/* Element (0, 0) of one matrix in its data, and the steps of its rows and columns after op(). */
struct view {
    const void *data;
    uint64_t start, row, column;
};

struct problem {
    const struct reference_case *c;
    uint64_t m, n, k, batch;
};

static int64_t dimension(const struct kops_tensor *t, unsigned from_end, bool transposed)
{
    return t->shape[t->rank - (transposed ? 3 - from_end : from_end)];
}

static bool shape_gemm(struct reference_case *c, const char **ret_why)
{
    struct kops_tensor *a = &c->inputs[0], *b = &c->inputs[1], *out = &c->out;

    *ret_why = "gemm takes matrices: at least two dimensions each";
    if (a->rank < 2 || b->rank < 2)
        return false;
    *ret_why = "the inner dimensions differ";
    if (dimension(a, 1, c->trans_a) != dimension(b, 2, c->trans_b))
        return false;
    *ret_why = "the batch dimensions do not broadcast";
    out->rank = a->rank > b->rank ? a->rank : b->rank;
    for (unsigned d = 3; d <= out->rank; d++) {
        int64_t of_a = d <= a->rank ? a->shape[a->rank - d] : 1, of_b = d <= b->rank ? b->shape[b->rank - d] : 1;

        if (of_a != of_b && of_a != 1 && of_b != 1)
            return false;
        out->shape[out->rank - d] = of_a == 1 ? of_b : of_a;
    }
    out->shape[out->rank - 2] = dimension(a, 2, c->trans_a);
    out->shape[out->rank - 1] = dimension(b, 1, c->trans_b);
    return true;
}

static bool shape_linear(struct reference_case *c, const char **ret_why)
{
    const struct kops_tensor *bias = &c->inputs[2];

    if (!shape_gemm(c, ret_why))
        return false;
    *ret_why = "the bias does not broadcast to the product";
    if (bias->rank > c->out.rank)
        return false;
    for (unsigned d = 1; d <= bias->rank; d++)
        if (bias->shape[bias->rank - d] != 1 && bias->shape[bias->rank - d] != c->out.shape[c->out.rank - d])
            return false;
    return true;
}

static bool shape_scaled(struct reference_case *c, const char **ret_why)
{
    if (!shape_gemm(c, ret_why))
        return false;
    *ret_why = "scale_a is one number, or one for each row of a (rows x 1), and scale_b one for each column of b";
    for (unsigned i = 0; i < 2; i++) {
        const struct kops_tensor *scale = &c->inputs[2 + i];

        if (scale->rank > c->out.rank)
            return false;
        for (unsigned d = 1; d <= scale->rank; d++)
            if (scale->shape[scale->rank - d] != 1 &&
                (d == 1 + i || scale->shape[scale->rank - d] != c->out.shape[c->out.rank - d]))
                return false;
    }
    return true;
}

static struct problem problem_of(const struct reference_case *c)
{
    struct problem p = {.c = c, .batch = 1};

    p.m = (uint64_t)dimension(&c->inputs[0], 2, c->trans_a);
    p.k = (uint64_t)dimension(&c->inputs[0], 1, c->trans_a);
    p.n = (uint64_t)dimension(&c->inputs[1], 1, c->trans_b);
    for (unsigned d = 0; d + 2 < c->out.rank; d++)
        p.batch *= (uint64_t)c->out.shape[d];
    return p;
}

static double product_flops(const struct reference_case *c)
{
    struct problem p = problem_of(c);

    return 2.0 * (double)p.m * (double)p.n * (double)p.k * (double)p.batch;
}

/* The matrix of input `i` that belongs to out's batch index. */
static struct view view_of(const struct reference_case *c, unsigned i, uint64_t batch)
{
    const struct kops_tensor *t = &c->inputs[i];
    const bool transposed = i ? c->trans_b : c->trans_a;
    const uint64_t columns = (uint64_t)t->shape[t->rank - 1];
    uint64_t stride = (uint64_t)t->shape[t->rank - 2] * columns;
    struct view v = {.data = c->data[i], .row = transposed ? 1 : columns, .column = transposed ? columns : 1};

    for (unsigned d = 3; d <= c->out.rank; d++) {
        uint64_t size = (uint64_t)c->out.shape[c->out.rank - d], place = batch % size;

        batch /= size;
        if (d > t->rank)
            continue;
        if (t->shape[t->rank - d] != 1)
            v.start += place * stride;
        stride *= (uint64_t)t->shape[t->rank - d];
    }
    return v;
}

static double activate(const char *activation, double x)
{
    if (!activation || !strcmp(activation, "none"))
        return x;
    if (!strcmp(activation, "relu"))
        return x < 0 ? 0 : x;
    if (!strcmp(activation, "gelu"))
        return x / 2 * (1 + erf(x / sqrt(2)));
    return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x)));
}

static bool is_linear(const struct reference_case *c)
{
    return c->n_inputs == 3;
}

static bool is_scaled(const struct reference_case *c)
{
    return c->n_inputs == 4;
}

/* The element of an input that broadcasts to out's. */
static double repeated(const struct reference_case *c, unsigned input, uint64_t at)
{
    const struct kops_tensor *t = &c->inputs[input];

    return data_get(c->data[input], reference_source(t, &c->out, at), t->dtype);
}

static void finish_element(const struct problem *p, const struct tolerance *t, struct report *r, uint64_t at,
                           double sum, double magnitude)
{
    const struct reference_case *c = p->c;
    double before = c->beta != 0 ? c->beta * data_get(c->before, at, c->out.dtype) : 0;
    double bias = is_linear(c) ? repeated(c, 2, at) : 0;
    double alpha = is_scaled(c) ? repeated(c, 2, at) * repeated(c, 3, at) : c->alpha;

    report_element(r, t, at, data_get(c->after, at, c->out.dtype), activate(c->activation, alpha * sum + before + bias),
                   fabs(alpha) * magnitude + fabs(before) + fabs(bias));
}

static void check_sample(const struct problem *p, const struct tolerance *t, struct report *r, uint64_t elements)
{
    uint64_t state = 1;

    for (uint64_t e = 0; e < elements; e++) {
        uint64_t at = data_random(&state) % r->total, j = at % p->n, i = at / p->n % p->m, batch = at / p->n / p->m;
        struct view a = view_of(p->c, 0, batch), b = view_of(p->c, 1, batch);
        double sum = 0, magnitude = 0;

        for (uint64_t l = 0; l < p->k; l++) {
            double product = data_get(a.data, a.start + i * a.row + l * a.column, p->c->inputs[0].dtype) *
                             data_get(b.data, b.start + l * b.row + j * b.column, p->c->inputs[1].dtype);

            sum += product;
            magnitude += fabs(product);
        }
        finish_element(p, t, r, at, sum, magnitude);
    }
}

/* Rows of `rows` × k doubles, from a view whose steps are given. */
static void unpack(double *into, const struct view *v, uint64_t rows, uint64_t k, uint64_t row, uint64_t column,
                   enum kops_dtype dtype)
{
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t l = 0; l < k; l++)
            into[i * k + l] = data_get(v->data, v->start + i * row + l * column, dtype);
}

/* Several partial sums: faster, and more exact than one. */
static void dot(const double *a, const double *b, uint64_t k, double *ret_sum, double *ret_magnitude)
{
    double sums[LANES] = {0}, magnitudes[LANES] = {0};
    uint64_t l = 0;

    for (; l + LANES <= k; l += LANES) {
        for (unsigned lane = 0; lane < LANES; lane++) {
            double product = a[l + lane] * b[l + lane];

            sums[lane] += product;
            magnitudes[lane] += fabs(product);
        }
    }
    for (; l < k; l++) {
        sums[0] += a[l] * b[l];
        magnitudes[0] += fabs(a[l] * b[l]);
    }
    *ret_sum = *ret_magnitude = 0;
    for (unsigned lane = 0; lane < LANES; lane++) {
        *ret_sum += sums[lane];
        *ret_magnitude += magnitudes[lane];
    }
}

static void check_whole(const struct problem *p, const struct tolerance *t, struct report *r, double *a, double *b)
{
    for (uint64_t batch = 0; batch < p->batch; batch++) {
        struct view av = view_of(p->c, 0, batch), bv = view_of(p->c, 1, batch);

        unpack(a, &av, p->m, p->k, av.row, av.column, p->c->inputs[0].dtype);
        /* Transposed: rows of the copy are columns of op(b). */
        unpack(b, &bv, p->n, p->k, bv.column, bv.row, p->c->inputs[1].dtype);
        for (uint64_t i = 0; i < p->m; i++) {
            for (uint64_t j = 0; j < p->n; j++) {
                double sum, magnitude;

                dot(a + i * p->k, b + j * p->k, p->k, &sum, &magnitude);
                finish_element(p, t, r, (batch * p->m + i) * p->n + j, sum, magnitude);
            }
        }
    }
}

static void check_product(const struct reference_case *c, const struct tolerance *t, struct report *ret)
{
    struct problem p = problem_of(c);
    double *a = NULL, *b = NULL;

    ret->total = p.m * p.n * p.batch;
    if (!ret->total)
        return;
    if (!p.k || ret->total <= whole_work / p.k) {
        a = malloc((p.m * p.k + 1) * sizeof(*a));
        b = malloc((p.n * p.k + 1) * sizeof(*b));
    }
    if (a && b)
        check_whole(&p, t, ret, a, b);
    else
        check_sample(&p, t, ret, p.k < sample_work ? sample_work / (p.k ? p.k : 1) : 1);
    free(a);
    free(b);
}

/* ---- the table ---- */

static const struct reference references[] = {
    {"add", "1048576", 2, true, broadcast, one_flop_each, add},
    {"add_square", "1048576", 2, true, broadcast, two_flops_each, add_square},
    {"copy", "1048576", 1, true, broadcast, NULL, copy},
    {"square", "1048576", 1, true, broadcast, one_flop_each, square},
    {"sub_square", "1048576", 2, true, broadcast, two_flops_each, sub_square},
    {"gemm", "1024x1024", 2, false, shape_gemm, product_flops, NULL},
    {"linear", "1024x1024", 3, false, shape_linear, product_flops, NULL},
    {"scaled_gemm", "1024x1024", 4, false, shape_scaled, product_flops, NULL},
};

const struct reference *reference_find(const char *op)
{
    for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++)
        if (!strcmp(references[i].op, op))
            return &references[i];
    return NULL;
}

void reference_check(const struct reference *reference, const struct reference_case *c, const struct tolerance *t,
                     struct report *ret)
{
    if (reference->compute)
        check_elements(reference, c, t, ret);
    else
        check_product(c, t, ret);
}
