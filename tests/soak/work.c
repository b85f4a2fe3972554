#include "work.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "expect.h"

enum { MAX_RANK = 3, MAX_SIDE = 40, MAX_DEPTH = 16 };

static const enum kops_dtype dtypes[] = {KOPS_F32, KOPS_F64};

/* ---- tensors ---- */

static int64_t count(const struct kops_tensor *t)
{
    return kops_tensor_count(t);
}

/* Where element `i` in row-major order is. */
static char *element(const struct kops_tensor *t, int64_t i)
{
    int64_t at = 0, stride = 1;

    for (unsigned d = t->rank; d-- > 0;) {
        at += i % t->shape[d] * (t->has_strides ? t->strides[d] : stride);
        i /= t->shape[d];
        stride *= t->shape[d];
    }
    return (char *)kops_buffer_data(t->buffer) + t->offset + (uint64_t)at * kops_dtype_size(t->dtype);
}

/* Where there are no elements their distance may be any. */
static int64_t odd_stride(struct random *r)
{
    static const int64_t strides[] = {0, 1, 1000, INT64_C(1) << 31, INT64_C(1) << 62, INT64_MAX};

    return strides[random_below(r, sizeof(strides) / sizeof(strides[0]))];
}

/* Contiguous, with gaps between rows, or with its last two dimensions the other way round in memory. */
static enum kops_code place(struct memory *m, struct kops_tensor *t, bool *made, struct kops_error *e)
{
    int64_t elements = 1;
    enum kops_code r;

    t->has_strides = t->rank && random_chance(m->random, 40);
    if (!t->has_strides)
        elements = count(t);
    for (unsigned i = t->rank; t->has_strides && i-- > 0;) {
        t->strides[i] = elements;
        elements = elements * t->shape[i] + random_below(m->random, 3);
    }
    if (t->has_strides && t->rank > 1 && random_chance(m->random, 40)) {
        t->strides[t->rank - 1] = t->shape[t->rank - 2] + random_below(m->random, 2);
        t->strides[t->rank - 2] = 1;
        elements = t->strides[t->rank - 1] * t->shape[t->rank - 1];
        for (unsigned i = t->rank - 2; i-- > 0; elements *= t->shape[i])
            t->strides[i] = elements;
    }
    if (!count(t)) {
        t->buffer = NULL;
        for (unsigned i = 0; t->has_strides && i < t->rank; i++)
            t->strides[i] = odd_stride(m->random);
        return KOPS_OK;
    }
    r = memory_take(m, (size_t)elements * kops_dtype_size(t->dtype), &t->buffer, &t->offset, e);
    *made = *made && t->buffer;
    return r;
}

static void fill(struct memory *m, const struct kops_tensor *t, unsigned most)
{
    for (int64_t i = 0; i < count(t); i++) {
        const double value = (double)random_below(m->random, 2 * most + 1) - most;
        const float f = (float)value;

        memcpy(element(t, i), t->dtype == KOPS_F64 ? (const void *)&value : &f, kops_dtype_size(t->dtype));
    }
}

static double value(const struct kops_tensor *t, int64_t i)
{
    double d;
    float f;

    if (t->dtype == KOPS_F64)
        memcpy(&d, element(t, i), sizeof(d));
    else
        memcpy(&f, element(t, i), sizeof(f));
    return t->dtype == KOPS_F64 ? d : (double)f;
}

static struct kops_tensor some_tensor(struct memory *m, enum kops_dtype dtype)
{
    struct kops_tensor t = {.dtype = dtype, .rank = random_below(m->random, MAX_RANK + 1)};
    const unsigned side = t.rank == 1 ? WORK_ELEMENTS : t.rank == 2 ? MAX_SIDE : MAX_SIDE / 3;

    for (unsigned i = 0; i < t.rank; i++)
        t.shape[i] = random_chance(m->random, 2) ? 0 : random_between(m->random, 1, side);
    return t;
}

/* ---- work ---- */

static enum kops_code make_elementwise(struct work *w, struct memory *m, bool *made, struct kops_error *e)
{
    const struct kops_tensor like = some_tensor(m, dtypes[random_below(m->random, 2)]);
    const unsigned inputs = w->kind == WORK_ADD ? 2 : 1;
    const bool in_place = random_chance(m->random, 10);
    enum kops_code r = KOPS_OK;

    w->n_tensors = inputs + 1;
    for (unsigned i = 0; i <= inputs; i++)
        w->t[i] = like;
    for (unsigned i = 0; !r && *made && i < inputs + !in_place; i++)
        r = place(m, &w->t[i], made, e);
    if (r || !*made)
        return r;
    if (in_place)
        w->t[inputs] = w->t[0];
    for (unsigned i = 0; i < inputs; i++)
        fill(m, &w->t[i], 8);
    for (int64_t i = 0; i < count(&like); i++)
        w->expected[i] =
            inputs == 2 ? value(&w->t[0], i) + value(&w->t[1], i) : value(&w->t[0], i) * value(&w->t[0], i);
    w->request = (struct kops_request){.op = inputs == 2 ? "add" : "square",
                                       .inputs = w->t,
                                       .n_inputs = inputs,
                                       .outputs = &w->t[inputs],
                                       .n_outputs = 1};
    return KOPS_OK;
}

static int64_t some_side(struct random *r, unsigned most)
{
    return random_chance(r, 3) ? 0 : random_between(r, 1, most);
}

static enum kops_code make_gemm(struct work *w, struct memory *m, bool *made, struct kops_error *e)
{
    const enum kops_dtype dtype = dtypes[random_below(m->random, 2)];
    const int64_t rows = some_side(m->random, MAX_SIDE), columns = some_side(m->random, MAX_SIDE),
                  depth = some_side(m->random, MAX_DEPTH);
    const bool a_turned = random_chance(m->random, 25), b_turned = random_chance(m->random, 25);
    const double alpha = random_between(m->random, 1, 2), beta = random_chance(m->random, 20) ? -1 : 0;
    enum kops_code r = KOPS_OK;

    w->n_tensors = 3;
    w->t[0] = kops_matrix(NULL, dtype, a_turned ? depth : rows, a_turned ? rows : depth);
    w->t[1] = kops_matrix(NULL, dtype, b_turned ? columns : depth, b_turned ? depth : columns);
    w->t[2] = kops_matrix(NULL, dtype, rows, columns);
    for (unsigned i = 0; !r && *made && i < 3; i++)
        r = place(m, &w->t[i], made, e);
    if (r || !*made)
        return r;
    for (unsigned i = 0; i < (beta != 0 ? 3 : 2); i++)
        fill(m, &w->t[i], 2);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k++) {
            double sum = 0;

            for (int64_t j = 0; j < depth; j++)
                sum += value(&w->t[0], a_turned ? j * rows + i : i * depth + j) *
                       value(&w->t[1], b_turned ? k * depth + j : j * columns + k);
            w->expected[i * columns + k] = alpha * sum + (beta != 0 ? beta * value(&w->t[2], i * columns + k) : 0);
        }
    w->attrs[0] = kops_attr_bool("trans_a", a_turned);
    w->attrs[1] = kops_attr_bool("trans_b", b_turned);
    w->attrs[2] = kops_attr_float("alpha", alpha);
    w->attrs[3] = kops_attr_float("beta", beta);
    w->request = (struct kops_request){.op = "gemm",
                                       .inputs = w->t,
                                       .n_inputs = 2,
                                       .outputs = &w->t[2],
                                       .n_outputs = 1,
                                       .attrs = w->attrs,
                                       .n_attrs = 4};
    return KOPS_OK;
}

static enum kops_code make_sequence(struct work *w, struct memory *m, bool *made, struct kops_error *e)
{
    static const uint32_t places[] = {0, 1, 2, 3};
    const struct kops_tensor like = some_tensor(m, dtypes[random_below(m->random, 2)]);
    enum kops_code r = KOPS_OK;

    w->n_tensors = 4;
    for (unsigned i = 0; !r && *made && i < 4; i++) {
        w->t[i] = like;
        r = place(m, &w->t[i], made, e);
    }
    if (r || !*made)
        return r;
    for (unsigned i = 0; i < 2; i++)
        fill(m, &w->t[i], 4);
    for (int64_t i = 0; i < count(&like); i++)
        w->expected[i] = pow(value(&w->t[0], i) + value(&w->t[1], i), 2);
    w->steps[0] =
        (struct kops_step){.op = "add", .inputs = places, .n_inputs = 2, .outputs = places + 2, .n_outputs = 1};
    w->steps[1] =
        (struct kops_step){.op = "square", .inputs = places + 2, .n_inputs = 1, .outputs = places + 3, .n_outputs = 1};
    w->sequence = (struct kops_sequence){w->t, 4, w->steps, 2};
    return KOPS_OK;
}

enum kops_code work_make(struct work *w, struct memory *m, bool *ret_made, struct kops_error *e)
{
    static const enum work_kind kinds[] = {WORK_ADD, WORK_ADD, WORK_SQUARE, WORK_GEMM, WORK_SEQUENCE};
    enum kops_code r;

    *ret_made = true;
    w->kind = kinds[random_below(m->random, sizeof(kinds) / sizeof(kinds[0]))];
    if (w->kind == WORK_GEMM)
        r = make_gemm(w, m, ret_made, e);
    else if (w->kind == WORK_SEQUENCE)
        r = make_sequence(w, m, ret_made, e);
    else
        r = make_elementwise(w, m, ret_made, e);
    if (!r && *ret_made && w->kind != WORK_SEQUENCE && random_chance(m->random, 5))
        w->request.options.no_timing = true;
    return r;
}

unsigned work_promise(const struct work *w)
{
    const struct kops_tensor *out = &w->t[w->n_tensors - 1];

    if (w->kind == WORK_SEQUENCE) /* it reads what it writes; where that has no gaps, the daemon knows better */
        return w->t[2].has_strides ? EXPECT_ONCE : EXPECT_BEGUN_ANEW;
    if (w->kind == WORK_GEMM && w->attrs[3].value.real != 0)
        return EXPECT_ONCE;
    if (w->kind != WORK_GEMM && out->buffer == w->t[0].buffer && out->offset == w->t[0].offset)
        return EXPECT_ONCE;
    return EXPECT_AGAIN | EXPECT_BEGUN_ANEW;
}

bool work_check(const struct work *w)
{
    const struct kops_tensor *out = &w->t[w->n_tensors - 1];

    for (int64_t i = 0; i < count(out); i++)
        if (value(out, i) != w->expected[i])
            return false;
    return true;
}

void work_tell(const struct work *w, char *into, size_t size)
{
    static const char *const names[] = {"add", "square", "gemm", "sequence"};
    const struct kops_tensor *out = &w->t[w->n_tensors - 1];
    int64_t i = 0;

    while (i < count(out) && value(out, i) == w->expected[i])
        i++;
    snprintf(into, size, "%s of %s, rank %u, %lld elements: element %lld is %g, not %g", names[w->kind],
             kops_dtype_name(out->dtype), out->rank, (long long)count(out), (long long)i,
             i < count(out) ? value(out, i) : 0, i < count(out) ? w->expected[i] : 0);
}
