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

bool tensor_ranges_intersect(const struct tensor *a, const struct tensor *b)
{
    if (a->count == 0 || b->count == 0)
        return false;
    return a->offset < b->offset + b->extent && b->offset < a->offset + a->extent;
}
