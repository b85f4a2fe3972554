/* Element values of every dtype as doubles, random ones, and results of ops to check others by. */
#ifndef KOPS_CTL_DATA_H
#define KOPS_CTL_DATA_H

#include <kops/kops.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fills floats with numbers of magnitude 2^-6 to 1, all bits of the mantissa and the sign random; integers with 0
 * to 99. */
void data_fill(void *data, size_t count, enum kops_dtype dtype, uint64_t seed);

double data_get(const void *data, size_t index, enum kops_dtype dtype);

/* Stores the nearest value that the dtype has; integers are cut to their range. */
void data_set(void *data, size_t index, enum kops_dtype dtype, double value);

bool data_is_float(enum kops_dtype dtype);

/* ---- results of ops in double precision: their shapes, amounts of work, and checks of results ---- */

enum { CASE_MAX_INPUTS = 4 };

/* A run to check; its tensors are contiguous. */
struct reference_case {
    enum kops_dtype dtype; /* type of the first input */
    size_t n_inputs;
    struct kops_tensor inputs[CASE_MAX_INPUTS], out;
    const void *data[CASE_MAX_INPUTS]; /* copies of the inputs */
    const void *before, *after;        /* out's data; `before` only where it is read */
    bool trans_a, trans_b;             /* attributes of products */
    const char *precision;             /* "": the op's default */
    double alpha, beta;
    const char *activation; /* linear's; NULL: none */
};

struct tolerance {
    double rtol, scaled, atol;
};

struct report {
    uint64_t checked, total, wrong;
    double worst; /* largest error, in units of the allowed error there */
    uint64_t at;  /* the first wrong element, its value and the right one */
    double got, expected;
};

struct reference {
    const char *op, *default_shape;
    size_t n_inputs;
    bool counts_bytes; /* the rate of interest is GB/s; otherwise GFLOP/s */
    /* Fills c->out.shape; false, and a sentence, when the inputs do not fit. */
    bool (*shape)(struct reference_case *c, const char **ret_why);
    double (*flops)(const struct reference_case *c); /* NULL: the op computes nothing */
    double (*compute)(const double *inputs);         /* an element of an elementwise op; NULL: the op is a product */
};

/* Returns the reference of an op; NULL: kopsctl does not know the op. */
const struct reference *reference_find(const char *op);

/* Returns the tolerance that the op declares; false when there is none. */
bool reference_tolerance(const char *op, enum kops_dtype dtype, const char *precision, struct tolerance *ret);

/* Checks the results in c->after. */
void reference_check(const struct reference *reference, const struct reference_case *c, const struct tolerance *t,
                     struct report *ret);

#endif
