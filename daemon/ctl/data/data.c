#include "data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/generated/tolerances.h"

enum kind { FLOATING, SIGNED, UNSIGNED, BOOLEAN };

/* How each dtype lays out its bits. */
static const struct format {
    enum kind kind;
    unsigned bits, mantissa, bias;
    bool finite; /* the largest exponent is one as any other, NaN has all bits set */
} formats[] = {
    [KOPS_F32] = {FLOATING, 32, 23, 127, false},  [KOPS_F64] = {FLOATING, 64, 52, 1023, false},
    [KOPS_F16] = {FLOATING, 16, 10, 15, false},   [KOPS_BF16] = {FLOATING, 16, 7, 127, false},
    [KOPS_I8] = {SIGNED, 8, 0, 0, false},         [KOPS_U8] = {UNSIGNED, 8, 0, 0, false},
    [KOPS_I16] = {SIGNED, 16, 0, 0, false},       [KOPS_U16] = {UNSIGNED, 16, 0, 0, false},
    [KOPS_I32] = {SIGNED, 32, 0, 0, false},       [KOPS_U32] = {UNSIGNED, 32, 0, 0, false},
    [KOPS_I64] = {SIGNED, 64, 0, 0, false},       [KOPS_U64] = {UNSIGNED, 64, 0, 0, false},
    [KOPS_BOOL] = {BOOLEAN, 8, 0, 0, false},      [KOPS_F8_E4M3] = {FLOATING, 8, 3, 7, true},
    [KOPS_F8_E5M2] = {FLOATING, 8, 2, 15, false},
};

/* Returns the next number of a splitmix64 sequence. */
static uint64_t data_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t random_bits(const struct format *f, uint64_t *state)
{
    const uint64_t random = data_random(state);
    const uint64_t mantissa = random & ((UINT64_C(1) << f->mantissa) - 1);
    const uint64_t exponent = f->bias - 1 - (random >> 58) % 6;

    if (f->kind != FLOATING)
        return (random >> 32) % (f->kind == BOOLEAN ? 2 : 100);
    return (random >> 57 & 1) << (f->bits - 1) | exponent << f->mantissa | mantissa;
}

/* Little-endian: the low bytes are the element. */
static void put(void *data, size_t index, const struct format *f, uint64_t bits)
{
    memcpy((char *)data + index * (f->bits / 8), &bits, f->bits / 8);
}

void data_fill(void *data, size_t count, enum kops_dtype dtype, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        put(data, i, &formats[dtype], random_bits(&formats[dtype], &seed));
}

static unsigned exponent_max(const struct format *f)
{
    return (1U << (f->bits - 1 - f->mantissa)) - 1;
}

/* Floats of up to 32 bits; doubles are the machine's own. */
static double decode(uint64_t bits, const struct format *f)
{
    const unsigned top = exponent_max(f), all = (1U << f->mantissa) - 1;
    const unsigned exponent = bits >> f->mantissa & top, mantissa = bits & all;
    double value;

    if (exponent == top && (!f->finite || mantissa == all))
        value = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - (int)f->bias - (int)f->mantissa);
    else
        value = ldexp(mantissa | 1U << f->mantissa, (int)exponent - (int)f->bias - (int)f->mantissa);
    return bits >> (f->bits - 1) & 1 ? -value : value;
}

double data_get(const void *data, size_t index, enum kops_dtype dtype)
{
    const struct format *f = &formats[dtype];
    uint64_t bits = 0;
    double value;

    memcpy(&bits, (const char *)data + index * (f->bits / 8), f->bits / 8);
    if (f->kind == SIGNED)
        return (double)((int64_t)(bits << (64 - f->bits)) >> (64 - f->bits));
    if (f->kind != FLOATING)
        return (double)bits;
    if (f->bits < 64)
        return decode(bits, f);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

bool data_is_float(enum kops_dtype dtype)
{
    return formats[dtype].kind == FLOATING;
}

/* Wraps a result around to the range of an integer type; floats stay as they are. */
static double data_wrap(double value, enum kops_dtype dtype)
{
    const struct format *f = &formats[dtype];
    const double range = ldexp(1, (int)f->bits);

    if (f->kind != SIGNED && f->kind != UNSIGNED)
        return value;
    value -= floor(value / range) * range;
    return f->kind == SIGNED && value >= range / 2 ? value - range : value;
}

/* The bits of a finite number that is not negative, to nearest even; one that is too large becomes the largest
 * exponent's first: infinity, where there is one. */
static uint64_t encode(double value, const struct format *f)
{
    const uint64_t top = exponent_max(f), largest = (top << f->mantissa) | ((1U << f->mantissa) - 2);
    int exponent;
    uint64_t bits;

    if (value == 0)
        return 0;
    frexp(value, &exponent); /* value = m 2^exponent, m from 0.5 on */
    exponent += (int)f->bias - 1;
    if (exponent < 1)
        exponent = 1; /* subnormal numbers have this exponent, too */
    if (exponent > (int)top)
        return f->finite ? largest : top << f->mantissa;
    bits = (uint64_t)nearbyint(ldexp(value, (int)f->bias + (int)f->mantissa - exponent));
    bits += (uint64_t)(exponent - 1) << f->mantissa; /* the leading bit adds 1, and a carry moves on */
    if (f->finite)
        return bits < largest ? bits : largest;
    return bits < top << f->mantissa ? bits : top << f->mantissa;
}

static uint64_t encode_integer(double value, const struct format *f)
{
    const bool negative = f->kind == SIGNED;
    const double limit = ldexp(1, (int)f->bits - negative);

    if (f->kind == BOOLEAN)
        return value != 0;
    if (isnan(value))
        return 0;
    if (value >= limit)
        return (negative ? UINT64_MAX >> 1 : UINT64_MAX) >> (64 - f->bits);
    if (value < (negative ? -limit : 0))
        return negative ? UINT64_C(1) << (f->bits - 1) : 0;
    return value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
}

void data_set(void *data, size_t index, enum kops_dtype dtype, double value)
{
    const struct format *f = &formats[dtype];
    uint64_t bits;

    if (f->kind != FLOATING) {
        bits = encode_integer(value, f);
    } else if (f->bits == 64) {
        memcpy(&bits, &value, sizeof(bits));
    } else {
        const uint64_t top = (uint64_t)exponent_max(f) << f->mantissa, all = (UINT64_C(1) << f->mantissa) - 1;

        bits = isnan(value) ? top | all : isinf(value) ? (f->finite ? top | all : top) : encode(fabs(value), f);
        bits |= (uint64_t)(signbit(value) != 0) << (f->bits - 1);
    }
    put(data, index, f, bits);
}

/* ---- results and their errors ---- */

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

/* ---- shapes ---- */

/* Dimensions are counted from the last one, which is 1; a tensor has further ones of size 1. */
static int64_t dim(const struct kops_tensor *t, unsigned d)
{
    return d <= t->rank ? t->shape[t->rank - d] : 1;
}

/* Sets the dimensions of out from `d` on, to which the first `n` inputs broadcast. False: they do not. */
static bool broadcast_from(struct reference_case *c, size_t n, unsigned d)
{
    c->out.rank = 0;
    for (size_t i = 0; i < n; i++)
        c->out.rank = c->inputs[i].rank > c->out.rank ? c->inputs[i].rank : c->out.rank;
    for (; d <= c->out.rank; d++) {
        int64_t *size = &c->out.shape[c->out.rank - d];

        *size = 1;
        for (size_t i = 0; i < n; i++) {
            const int64_t own = dim(&c->inputs[i], d);

            if (own != 1 && *size != 1 && own != *size)
                return false;
            *size = own != 1 ? own : *size;
        }
    }
    return true;
}

static bool broadcast(struct reference_case *c, const char **ret_why)
{
    *ret_why = "the shapes do not broadcast";
    return broadcast_from(c, c->n_inputs, 1);
}

static bool shape_gemm(struct reference_case *c, const char **ret_why)
{
    const struct kops_tensor *a = &c->inputs[0], *b = &c->inputs[1];

    *ret_why = "gemm takes matrices: at least two dimensions each";
    if (a->rank < 2 || b->rank < 2)
        return false;
    *ret_why = "the inner dimensions differ";
    if (dim(a, c->trans_a ? 2 : 1) != dim(b, c->trans_b ? 1 : 2))
        return false;
    *ret_why = "the batch dimensions do not broadcast";
    if (!broadcast_from(c, 2, 3))
        return false;
    c->out.shape[c->out.rank - 2] = dim(a, c->trans_a ? 1 : 2);
    c->out.shape[c->out.rank - 1] = dim(b, c->trans_b ? 2 : 1);
    return true;
}

/* Whether the input broadcasts to out, with size 1 in dimension `single`; 0: any sizes. */
static bool fits(const struct reference_case *c, size_t input, unsigned single)
{
    const struct kops_tensor *t = &c->inputs[input];

    for (unsigned d = 1; d <= t->rank; d++)
        if (dim(t, d) != 1 && (d == single || dim(t, d) != dim(&c->out, d)))
            return false;
    return t->rank <= c->out.rank;
}

static bool shape_linear(struct reference_case *c, const char **ret_why)
{
    if (!shape_gemm(c, ret_why))
        return false;
    *ret_why = "the bias does not broadcast to the product";
    return fits(c, 2, 0);
}

static bool shape_scaled(struct reference_case *c, const char **ret_why)
{
    if (!shape_gemm(c, ret_why))
        return false;
    *ret_why = "scale_a is one number, or one for each row of a (rows x 1), and scale_b one for each column of b";
    return fits(c, 2, 1) && fits(c, 3, 2);
}

/* The element of an input, which broadcasts to out, for out's element `at`. */
static uint64_t source_of(const struct reference_case *c, size_t input, uint64_t at)
{
    const struct kops_tensor *in = &c->inputs[input];
    uint64_t index = 0, stride = 1;

    for (unsigned d = 1; d <= in->rank; d++) {
        const uint64_t size = (uint64_t)dim(&c->out, d), place = at % size;

        at /= size;
        if (dim(in, d) != 1)
            index += place * stride;
        stride *= (uint64_t)dim(in, d);
    }
    return index;
}

/* ---- elementwise ops ---- */

static double one_flop_each(const struct reference_case *c)
{
    return data_is_float(c->dtype) ? (double)kops_tensor_count(&c->out) : (double)NAN;
}

static double two_flops_each(const struct reference_case *c)
{
    return 2 * one_flop_each(c);
}

static void check_elements(const struct reference *reference, const struct reference_case *c, const struct tolerance *t,
                           struct report *ret)
{
    double values[CASE_MAX_INPUTS];

    ret->total = (uint64_t)kops_tensor_count(&c->out);
    for (uint64_t at = 0; at < ret->total; at++) {
        double scale = 0;

        for (size_t i = 0; i < c->n_inputs; i++) {
            const bool direct = kops_tensor_count(&c->inputs[i]) == kops_tensor_count(&c->out);

            values[i] = data_get(c->data[i], direct ? at : source_of(c, i, at), c->dtype);
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

static struct problem problem_of(const struct reference_case *c)
{
    struct problem p = {.c = c, .batch = 1};

    p.m = (uint64_t)dim(&c->inputs[0], c->trans_a ? 1 : 2);
    p.k = (uint64_t)dim(&c->inputs[0], c->trans_a ? 2 : 1);
    p.n = (uint64_t)dim(&c->inputs[1], c->trans_b ? 2 : 1);
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
static struct view view_of(const struct problem *p, size_t i, uint64_t batch)
{
    const bool transposed = i ? p->c->trans_b : p->c->trans_a;
    const uint64_t columns = (uint64_t)dim(&p->c->inputs[i], 1);

    return (struct view){.data = p->c->data[i],
                         .start = source_of(p->c, i, batch * p->m * p->n),
                         .row = transposed ? 1 : columns,
                         .column = transposed ? columns : 1};
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

static double repeated(const struct reference_case *c, size_t input, uint64_t at)
{
    return data_get(c->data[input], source_of(c, input, at), c->inputs[input].dtype);
}

/* linear has a bias, its third input; scaled_gemm two scales. */
static void finish_element(const struct problem *p, const struct tolerance *t, struct report *r, uint64_t at,
                           double sum, double magnitude)
{
    const struct reference_case *c = p->c;
    double before = c->beta != 0 ? c->beta * data_get(c->before, at, c->out.dtype) : 0;
    double bias = c->n_inputs == 3 ? repeated(c, 2, at) : 0;
    double alpha = c->n_inputs == 4 ? repeated(c, 2, at) * repeated(c, 3, at) : c->alpha;

    report_element(r, t, at, data_get(c->after, at, c->out.dtype), activate(c->activation, alpha * sum + before + bias),
                   fabs(alpha) * magnitude + fabs(before) + fabs(bias));
}

static void check_sample(const struct problem *p, const struct tolerance *t, struct report *r, uint64_t elements)
{
    uint64_t state = 1;

    for (uint64_t e = 0; e < elements; e++) {
        uint64_t at = data_random(&state) % r->total, j = at % p->n, i = at / p->n % p->m, batch = at / p->n / p->m;
        struct view a = view_of(p, 0, batch), b = view_of(p, 1, batch);
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

/* Copies `rows` × k elements to doubles; the steps of rows and columns are given. */
static void unpack(double *into, const struct problem *p, size_t i, const struct view *v, uint64_t rows, uint64_t row,
                   uint64_t column)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t l = 0; l < p->k; l++)
            into[r * p->k + l] = data_get(v->data, v->start + r * row + l * column, p->c->inputs[i].dtype);
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
        struct view av = view_of(p, 0, batch), bv = view_of(p, 1, batch);

        unpack(a, p, 0, &av, p->m, av.row, av.column);
        /* Transposed: rows of the copy are columns of op(b). */
        unpack(b, p, 1, &bv, p->n, bv.column, bv.row);
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
