/* Random layouts and contents. */
#include "arrays.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "values.h"

enum { MARGIN = 24 }; /* elements behind an output, to see writes beyond it */

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014). */
uint64_t lab_random(struct lab_random *r)
{
    uint64_t x = r->state += 0x9e3779b97f4a7c15U;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

int64_t lab_random_between(struct lab_random *r, int64_t low, int64_t high)
{
    return low + (int64_t)(lab_random(r) % (uint64_t)(high - low + 1));
}

static void order_dimensions(struct lab_random *r, enum lab_layout layout, unsigned rank, unsigned *order)
{
    for (unsigned i = 0; i < rank; i++)
        order[i] = i;
    if (layout != LAYOUT_TRANSPOSED)
        return;
    for (unsigned i = 0; i + 1 < rank; i++) {
        const unsigned j = (unsigned)lab_random_between(r, i + 1, rank - 1), x = order[i];

        order[i] = order[j];
        order[j] = x;
    }
}

int lab_array_make(struct lab_array *a, struct lab_random *r, enum lab_layout layout, bool is_output)
{
    struct tensor *t = &a->tensor;
    const size_t size = dtype_size(t->dtype);
    unsigned order[TENSOR_MAX_RANK];
    int64_t stride = layout == LAYOUT_STRIDED ? lab_random_between(r, 2, 3) : 1;
    uint64_t furthest = 0;

    a->layout = layout;
    order_dimensions(r, layout, t->rank, order);
    for (unsigned i = t->rank; i-- > 0;) {
        const unsigned d = order[i];

        t->strides[d] = stride;
        stride *= t->shape[d] + (layout == LAYOUT_SLICE ? lab_random_between(r, 0, 5) : 0);
        if (stride == 0)
            stride = 1;
    }
    if (layout == LAYOUT_EXPANDED && t->rank)
        t->strides[lab_random_between(r, 0, t->rank - 1)] = 0;
    t->offset = layout == LAYOUT_CONTIGUOUS ? 0 : (uint64_t)lab_random_between(r, 0, 19) * size;
    if (layout == LAYOUT_SLICE && lab_random(r) % 2)
        t->offset = t->offset / 16 * 16;
    t->count = 1;
    for (unsigned d = 0; d < t->rank; d++) {
        t->count *= (uint64_t)t->shape[d];
        furthest += (uint64_t)((t->shape[d] - 1) * t->strides[d]);
    }
    t->extent = t->count ? (furthest + 1) * size : 0;
    a->size = t->offset + t->extent + (is_output ? MARGIN * size : 0);
    a->host = malloc(a->size ? a->size : 1);
    return a->host ? 0 : -1;
}

void lab_array_fill(struct lab_array *a, struct lab_random *r, bool special)
{
    static const double specials[] = {INFINITY, -INFINITY, 0.0, -0.0, 6e-8, -3e-39, 65504, -65519, 3e38, 1e-300};
    const enum dtype dtype = a->tensor.dtype;

    for (size_t i = 0; i < a->size / dtype_size(dtype); i++) {
        const uint64_t x = lab_random(r);
        double value = ldexp((double)(int64_t)x, -63);

        if (!dtype_is_float(dtype)) {
            value_set_bits(dtype, a->host, i, x);
            continue;
        }
        if (special && x % 8 == 0)
            value = specials[x / 8 % (sizeof(specials) / sizeof(specials[0]))];
        else if (special && x % 8 < 4)
            value = ldexp(value, (int)(x / 8 % 32) - 16);
        value_set(dtype, a->host, i, value);
    }
}

void lab_array_free(struct lab_array *a)
{
    free(a->host);
    a->host = NULL;
}

int lab_array_upload(struct lab_array *a, const struct lab_machine *m)
{
    a->address = m->alloc(m->context, a->size);
    if (!a->address)
        return -1;
    return m->write(m->context, a->address, a->host, a->size);
}

int lab_array_download(const struct lab_array *a, const struct lab_machine *m, unsigned char *into)
{
    return m->read(m->context, into, a->address, a->size);
}

void lab_array_unload(struct lab_array *a, const struct lab_machine *m)
{
    if (a->address)
        m->free(m->context, a->address, a->size);
    a->address = 0;
}

bool lab_next_index(const int64_t *shape, unsigned rank, int64_t *index)
{
    for (unsigned d = rank; d-- > 0;) {
        if (++index[d] < shape[d])
            return true;
        index[d] = 0;
    }
    return false;
}

size_t lab_element(const struct tensor *t, const int64_t *index)
{
    uint64_t at = t->offset / dtype_size(t->dtype);

    for (unsigned d = 0; d < t->rank; d++)
        at += (uint64_t)(index[d] * t->strides[d]);
    return (size_t)at;
}

int lab_array_describe(const struct lab_array *a, char *into, size_t size)
{
    const struct tensor *t = &a->tensor;
    size_t n = 0;

    for (unsigned part = 0; part < 2; part++) {
        n += (size_t)snprintf(into + n, n < size ? size - n : 0, part ? "/[" : "[");
        for (unsigned d = 0; d < t->rank; d++)
            n += (size_t)snprintf(into + (n < size ? n : size), n < size ? size - n : 0, "%s%lld", d ? "," : "",
                                  (long long)(part ? t->strides[d] : t->shape[d]));
        n += (size_t)snprintf(into + (n < size ? n : size), n < size ? size - n : 0, "]");
    }
    n +=
        (size_t)snprintf(into + (n < size ? n : size), n < size ? size - n : 0, "+%llu", (unsigned long long)t->offset);
    return (int)(n < size ? n : size);
}
