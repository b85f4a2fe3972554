/* The table of references, tolerances, and the elementwise ops. */
#include "reference.h"

#include <math.h>
#include <string.h>

#include "data.h"
#include "proto/generated/tolerances.h"

const struct reference *reference_find(const char *op)
{
    static const struct reference *const all[] = {&reference_add,    &reference_add_square, &reference_copy,
                                                  &reference_square, &reference_sub_square, &reference_gemm,
                                                  &reference_linear, &reference_scaled_gemm};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(all[i]->op, op))
            return all[i];
    return NULL;
}

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

uint64_t reference_source(const struct kops_tensor *in, const struct kops_tensor *out, uint64_t at)
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

static void check_elements(const struct reference_case *c, const struct tolerance *t, struct report *ret,
                           double (*compute)(const double *inputs))
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
        report_element(ret, t, at, data_get(c->after, at, c->dtype), data_wrap(compute(values), c->dtype), scale);
    }
}

static double compute_add(const double *inputs)
{
    return inputs[0] + inputs[1];
}

static double compute_square(const double *inputs)
{
    return inputs[0] * inputs[0];
}

static double compute_add_square(const double *inputs)
{
    return (inputs[0] + inputs[1]) * (inputs[0] + inputs[1]);
}

static double compute_sub_square(const double *inputs)
{
    return (inputs[0] - inputs[1]) * (inputs[0] - inputs[1]);
}

static double compute_copy(const double *inputs)
{
    return inputs[0];
}

static void check_add(const struct reference_case *c, const struct tolerance *t, struct report *ret)
{
    check_elements(c, t, ret, compute_add);
}

static void check_add_square(const struct reference_case *c, const struct tolerance *t, struct report *ret)
{
    check_elements(c, t, ret, compute_add_square);
}

static void check_sub_square(const struct reference_case *c, const struct tolerance *t, struct report *ret)
{
    check_elements(c, t, ret, compute_sub_square);
}

static void check_copy(const struct reference_case *c, const struct tolerance *t, struct report *ret)
{
    check_elements(c, t, ret, compute_copy);
}

static void check_square(const struct reference_case *c, const struct tolerance *t, struct report *ret)
{
    check_elements(c, t, ret, compute_square);
}

const struct reference reference_add = {.op = "add",
                                        .default_shape = "1048576",
                                        .n_inputs = 2,
                                        .counts_bytes = true,
                                        .shape = broadcast,
                                        .flops = one_flop_each,
                                        .check = check_add};

const struct reference reference_add_square = {.op = "add_square",
                                               .default_shape = "1048576",
                                               .n_inputs = 2,
                                               .counts_bytes = true,
                                               .shape = broadcast,
                                               .flops = two_flops_each,
                                               .check = check_add_square};

const struct reference reference_sub_square = {.op = "sub_square",
                                               .default_shape = "1048576",
                                               .n_inputs = 2,
                                               .counts_bytes = true,
                                               .shape = broadcast,
                                               .flops = two_flops_each,
                                               .check = check_sub_square};

const struct reference reference_copy = {.op = "copy",
                                         .default_shape = "1048576",
                                         .n_inputs = 1,
                                         .counts_bytes = true,
                                         .shape = broadcast,
                                         .check = check_copy};

const struct reference reference_square = {.op = "square",
                                           .default_shape = "1048576",
                                           .n_inputs = 1,
                                           .counts_bytes = true,
                                           .shape = broadcast,
                                           .flops = one_flop_each,
                                           .check = check_square};
