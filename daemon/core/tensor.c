#include "core/tensor.h"

#include <string.h>

void tensor_set_contiguous(struct tensor *t)
{
    int64_t stride = 1;

    for (unsigned i = t->rank; i-- > 0;) {
        t->strides[i] = stride;
        /* An overflow here is met again, and refused, by tensor_measure(). */
        if (t->shape[i] > 0 && __builtin_mul_overflow(stride, t->shape[i], &stride))
            stride = INT64_MAX;
    }
}

static int overflow(const char *key, struct error *e)
{
    error_set(e, ERROR_OUT_OF_RANGE, "%s: shape, strides and offset reach past 2^63 bytes", key);
    return error_detail_text(e, "key", key);
}

int tensor_measure(struct tensor *t, const char *key, struct error *e)
{
    const int64_t size = (int64_t)dtype_size(t->dtype);
    int64_t count = 1, furthest = 0, bytes;

    if (t->offset % (uint64_t)size) {
        error_set(e, ERROR_MISALIGNED, "%s: offset %llu is no multiple of the element size %lld", key,
                  (unsigned long long)t->offset, (long long)size);
        return error_detail_text(e, "key", key);
    }
    t->count = t->extent = 0;
    for (unsigned i = 0; i < t->rank; i++)
        if (t->shape[i] == 0)
            return 0;
    for (unsigned i = 0; i < t->rank; i++) {
        int64_t reach;

        if (__builtin_mul_overflow(count, t->shape[i], &count) ||
            __builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &reach) ||
            __builtin_add_overflow(furthest, reach, &furthest))
            return overflow(key, e);
    }
    if (__builtin_add_overflow(furthest, 1, &furthest) || __builtin_mul_overflow(furthest, size, &bytes) ||
        t->offset > (uint64_t)(INT64_MAX - bytes))
        return overflow(key, e);
    t->count = (uint64_t)count;
    t->extent = (uint64_t)bytes;
    return 0;
}

/* The bounds check of every tensor that a request names. */
int tensor_check_bounds(const struct tensor *t, uint64_t size, const char *key, struct error *e)
{
    if (t->count == 0 || t->offset + t->extent <= size)
        return 0;
    error_set(e, ERROR_OUT_OF_BOUNDS, "%s: needs bytes up to %llu, but its buffer has %llu", key,
              (unsigned long long)(t->offset + t->extent), (unsigned long long)size);
    error_detail_text(e, "key", key);
    error_detail_number(e, "needed", (int64_t)(t->offset + t->extent));
    return error_detail_number(e, "size", (int64_t)size);
}

/* Dimensions that have more than one index, ordered by stride, smallest first. */
static unsigned by_stride(const struct tensor *t, int64_t shape[TENSOR_MAX_RANK], int64_t strides[TENSOR_MAX_RANK])
{
    unsigned n = 0;

    for (unsigned i = 0; i < t->rank; i++) {
        unsigned j;

        if (t->shape[i] == 1)
            continue;
        for (j = n++; j > 0 && strides[j - 1] > t->strides[i]; j--) {
            strides[j] = strides[j - 1];
            shape[j] = shape[j - 1];
        }
        strides[j] = t->strides[i];
        shape[j] = t->shape[i];
    }
    return n;
}

bool tensor_overlaps_itself(const struct tensor *t)
{
    int64_t shape[TENSOR_MAX_RANK], strides[TENSOR_MAX_RANK], reach = 0;
    unsigned n;

    if (t->count <= 1)
        return false;
    n = by_stride(t, shape, strides);
    for (unsigned i = 0; i < n; i++) {
        /* Each dimension must step over all that the smaller ones reach. */
        if (strides[i] <= reach)
            return true;
        reach += (shape[i] - 1) * strides[i];
    }
    return false;
}

bool tensor_same_view(const struct tensor *a, const struct tensor *b)
{
    if (a->offset != b->offset || a->dtype != b->dtype || a->rank != b->rank)
        return false;
    for (unsigned i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->strides[i] != b->strides[i]))
            return false;
    return true;
}

/* The strides of two tensors together, largest first, with the size of each tensor's dimension of that stride; and how
 * far the smaller strides can lead together. */
struct common_strides {
    unsigned n;
    int64_t stride[2 * TENSOR_MAX_RANK], size_a[2 * TENSOR_MAX_RANK], size_b[2 * TENSOR_MAX_RANK];
    int64_t below_a[2 * TENSOR_MAX_RANK], below_b[2 * TENSOR_MAX_RANK];
};

static int64_t *size_at(struct common_strides *c, int64_t stride, bool of_a)
{
    unsigned i = 0, j;

    while (i < c->n && c->stride[i] > stride)
        i++;
    if (i == c->n || c->stride[i] != stride) {
        for (j = c->n++; j > i; j--) {
            c->stride[j] = c->stride[j - 1];
            c->size_a[j] = c->size_a[j - 1];
            c->size_b[j] = c->size_b[j - 1];
        }
        c->stride[i] = stride;
        c->size_a[i] = c->size_b[i] = 1;
    }
    return of_a ? &c->size_a[i] : &c->size_b[i];
}

/* Returns false for strides that repeat in one tensor. Dimensions of stride 0 do not matter here. */
static bool add_strides(struct common_strides *c, const struct tensor *t, bool is_a)
{
    for (unsigned i = 0; i < t->rank; i++) {
        int64_t *size;

        if (t->shape[i] == 1 || t->strides[i] == 0)
            continue;
        size = size_at(c, t->strides[i], is_a);
        if (*size != 1)
            return false;
        *size = t->shape[i];
    }
    return true;
}

static void add_up_strides(struct common_strides *c)
{
    int64_t a = 0, b = 0;

    for (unsigned i = c->n; i--;) {
        c->below_a[i] = a;
        c->below_b[i] = b;
        a += (c->size_a[i] - 1) * c->stride[i];
        b += (c->size_b[i] - 1) * c->stride[i];
    }
}

/* Is there, from dimension i on, a pair of indices whose elements lie `delta` apart? For each stride the difference of
 * the indices is tried where the smaller strides can still make up for the rest. */
static bool search_pair(const struct common_strides *c, unsigned i, int64_t delta, unsigned *budget)
{
    enum { FEW = 16 };
    int64_t low_a, low_b, s, first, last;

    if (i == c->n)
        return delta == 0;
    if (*budget == 0)
        return true;
    --*budget;
    low_a = c->below_a[i];
    low_b = c->below_b[i];
    s = c->stride[i];
    first = -(c->size_b[i] - 1);
    last = c->size_a[i] - 1;
    if (last - first > FEW) { /* fewer are tried faster than divided */
        /* delta − d·s must lie within [−low_b, low_a]. */
        const int64_t from = (delta - low_a) / s - 1, to = (delta + low_b) / s + 1;

        first = first < from ? from : first;
        last = last > to ? to : last;
    }
    for (int64_t d = first; d <= last; d++) {
        int64_t rest = delta - d * s;

        if (rest >= -low_b && rest <= low_a && search_pair(c, i + 1, rest, budget))
            return true;
    }
    return false;
}

bool tensor_share_elements(const struct tensor *a, const struct tensor *b)
{
    unsigned budget = TENSOR_SEARCH_STEPS;

    return tensor_share_elements_within(a, b, &budget);
}

bool tensor_share_elements_within(const struct tensor *a, const struct tensor *b, unsigned *budget)
{
    const unsigned most = *budget < TENSOR_SEARCH_STEPS ? *budget : TENSOR_SEARCH_STEPS, sorting = a->rank + b->rank;
    unsigned left = most > sorting ? most - sorting : 0;
    struct common_strides c;
    int64_t delta;
    bool share;

    if (a->count == 0 || b->count == 0)
        return false;
    if (a->offset >= b->offset + b->extent || b->offset >= a->offset + a->extent)
        return false;
    *budget -= most - left;
    c.n = 0;
    if (left == 0 || a->dtype != b->dtype || !add_strides(&c, a, true) || !add_strides(&c, b, false))
        return true;
    add_up_strides(&c);
    delta = ((int64_t)b->offset - (int64_t)a->offset) / (int64_t)dtype_size(a->dtype);
    *budget -= left;
    share = search_pair(&c, 0, delta, &left);
    *budget += left;
    return share;
}
