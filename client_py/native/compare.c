/* Comparing a kernel's output with the right one, for kops.judge: in one pass without temporaries, and without the GIL.
 * Arrays come as addresses, since the stable ABI of Python 3.10 has no buffers. Only `kops.judge._values` calls these
 * functions, with arrays whose dtypes and sizes it has checked. They tell whether an array is right; Python finds out
 * what is wrong. */
#include "python_native.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 4, /* partial sums, so that the loop needs no order of additions */
    AT_ONCE = 1 << 12
};

typedef void (*widen_fn)(const unsigned char *bits, size_t count, double *ret);

static double f32_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void widen_f64(const unsigned char *bits, size_t count, double *ret)
{
    memcpy(ret, bits, count * sizeof(*ret));
}

static void widen_f32(const unsigned char *bits, size_t count, double *ret)
{
    for (size_t i = 0; i < count; i++) {
        float value;

        memcpy(&value, bits + i * sizeof(value), sizeof(value));
        ret[i] = value;
    }
}

static void widen_bf16(const unsigned char *bits, size_t count, double *ret)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t value;

        memcpy(&value, bits + i * sizeof(value), sizeof(value));
        ret[i] = f32_of((uint32_t)value << 16);
    }
}

/* Converts the bits of a binary16, whose exponent has the bias 15, not 127 as a binary32's. */
static double f16_of(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, exponent = value >> 10 & 31, mantissa = value & 1023;

    if (exponent == 31)
        return f32_of(sign | 0x7f800000 | mantissa << 13);
    if (exponent)
        return f32_of(sign | (exponent + 112) << 23 | mantissa << 13);
    return (sign ? -1.0 : 1.0) * mantissa / 16777216.0; /* 2^-24 each */
}

static void widen_f16(const unsigned char *bits, size_t count, double *ret)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t value;

        memcpy(&value, bits + i * sizeof(value), sizeof(value));
        ret[i] = f16_of(value);
    }
}

static const struct {
    const char *dtype;
    size_t size;
    widen_fn widen;
} floats[] = {
    {"f64", 8, widen_f64},
    {"f32", 4, widen_f32},
    {"bf16", 2, widen_bf16},
    {"f16", 2, widen_f16},
};

struct errors {
    uint64_t wrong;
    uint64_t by_atol; /* elements of at least `least` that rtol alone does not allow */
    double squares;   /* sum of squared errors of elements that are finite on both sides */
};

struct rule {
    double rtol, atol, least;
};

/* An element is right within atol + rtol |want|, or where both are the same infinity, or NaN. */
static void add_error(double got, double want, const struct rule *rule, struct errors *sum)
{
    double far = fabs(got - want), size = fabs(want);

    if (isfinite(got) && isfinite(want)) {
        sum->wrong += far > rule->atol + rule->rtol * size;
        sum->by_atol += size >= rule->least && far > rule->rtol * size;
        sum->squares += far * far;
    } else {
        sum->wrong += !(got == want || (isnan(got) && isnan(want)));
    }
}

/* Counts the wrong elements, without branches. The sum of squares is finite unless an element, or its error, is not. */
static void add_whole(const double *got, const double *want, size_t count, const struct rule *rule, struct errors *sum)
{
    double squares[LANES] = {0}, wrong[LANES] = {0}, by_atol[LANES] = {0};
    const double rtol = rule->rtol, atol = rule->atol, least = rule->least;

    for (size_t i = 0; i < count; i += LANES)
        for (size_t k = 0; k < LANES; k++) {
            double far = fabs(got[i + k] - want[i + k]), size = fabs(want[i + k]), allowed = rtol * size;

            wrong[k] += far <= atol + allowed ? 0.0 : 1.0;
            by_atol[k] += ((size >= least) & (far > allowed)) ? 1.0 : 0.0;
            squares[k] += far * far;
        }
    for (size_t k = 0; k < LANES; k++) {
        sum->squares += squares[k];
        sum->wrong += (uint64_t)wrong[k];
        sum->by_atol += (uint64_t)by_atol[k];
    }
}

static void add_errors(const double *got, const double *want, size_t count, const struct rule *rule, struct errors *sum)
{
    size_t whole = count - count % LANES;
    struct errors found = {0};

    add_whole(got, want, whole, rule, &found);
    if (!isfinite(found.squares)) { /* values that are not finite need the other rule */
        found = (struct errors){0};
        whole = 0;
    }
    for (size_t i = whole; i < count; i++)
        add_error(got[i], want[i], rule, &found);
    sum->wrong += found.wrong;
    sum->by_atol += found.by_atol;
    sum->squares += found.squares;
}

PyObject *compare_floats(PyObject *module, PyObject *args)
{
    struct errors sum = {0};
    unsigned long long got, want, count;
    struct rule rule;
    const char *dtype;
    size_t kind = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "sKKKddd", &dtype, &got, &want, &count, &rule.rtol, &rule.atol, &rule.least))
        return NULL;
    while (kind < sizeof(floats) / sizeof(*floats) && strcmp(floats[kind].dtype, dtype) != 0)
        kind++;
    if (kind == sizeof(floats) / sizeof(*floats))
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS double wide[AT_ONCE];

    for (uint64_t at = 0; at < count; at += AT_ONCE) {
        size_t now = count - at < AT_ONCE ? (size_t)(count - at) : AT_ONCE;

        floats[kind].widen((const unsigned char *)(uintptr_t)got + at * floats[kind].size, now, wide);
        add_errors(wide, (const double *)(uintptr_t)want + at, now, &rule, &sum);
    }
    Py_END_ALLOW_THREADS return Py_BuildValue("KdK", (unsigned long long)sum.wrong, sum.squares,
                                              (unsigned long long)sum.by_atol);
}

PyObject *compare_bytes(PyObject *module, PyObject *args)
{
    unsigned long long a, b, count;
    int order;

    (void)module;
    if (!PyArg_ParseTuple(args, "KKK", &a, &b, &count))
        return NULL;
    Py_BEGIN_ALLOW_THREADS order = memcmp((const void *)(uintptr_t)a, (const void *)(uintptr_t)b, (size_t)count);
    Py_END_ALLOW_THREADS return PyBool_FromLong(order == 0);
}
