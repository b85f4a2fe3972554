/* Tensor maps of users' kernels: the conditions of cuTensorMapEncodeTiled() (see cuda.h), checked with clear errors. */
#include <stdio.h>
#include <string.h>

#include "core/kernel_internal.h"

enum {
    MAX_BOX = 256,   /* elements in each dimension */
    MAX_STEP = 8,    /* elements */
    ALIGNMENT = 16,  /* bytes: alignment of the address, of strides, of a box's row */
    INTERLEAVED = 32 /* bytes: alignment with interleave 32 */
};

/* ---- the declaration ---- */

/* CUtensorMapDataType of each dtype. Types without a CUDA type are moved as bits of their size. */
static const uint8_t types[] = {
    [DTYPE_U8] = 0,  [DTYPE_I8] = 0,  [DTYPE_BOOL] = 0, [DTYPE_F8_E4M3] = 0, [DTYPE_F8_E5M2] = 0,
    [DTYPE_U16] = 1, [DTYPE_I16] = 1, [DTYPE_U32] = 2,  [DTYPE_I32] = 3,     [DTYPE_U64] = 4,
    [DTYPE_I64] = 5, [DTYPE_F16] = 6, [DTYPE_F32] = 7,  [DTYPE_F64] = 8,     [DTYPE_BF16] = 9,
};
enum { TYPE_F16 = 6, TYPE_BF16 = 9, TYPE_TF32 = 11, INTERLEAVE_32 = 2 };

/* Returns CUDA's number of a size; -1: CUDA has none. */
static int number_of(const uint16_t *sizes, uint64_t size)
{
    for (int i = 0; i < 4; i++)
        if (sizes[i] == size)
            return i;
    return -1;
}

static int refuse(const struct kernel_param *p, const char *key, const char *why, struct error *e)
{
    char path[32];

    snprintf(path, sizeof(path), "params[%u].map.", p->index);
    return error_at(e, ERROR_INVALID_ARGUMENT, path, key, why);
}

static int set_steps(struct kernel_param *p, const struct kernel_map_declaration *d, struct error *e)
{
    if (d->n_steps && d->n_steps != d->n_box)
        return refuse(p, "steps", "has as many numbers as box", e);
    for (unsigned i = 0; i < d->n_box; i++) {
        const int64_t step = d->n_steps ? d->steps[i] : 1;

        if (step < 1 || step > MAX_STEP)
            return refuse(p, "steps", "each must be from 1 to 8", e);
        if (i + 1 == d->n_box && step != 1 && !d->interleave)
            return refuse(p, "steps", "the last must be 1 without interleave", e);
        p->map.steps[i] = (uint8_t)step;
    }
    return 0;
}

static bool is_float(unsigned type)
{
    return type >= TYPE_F16 && type <= TYPE_BF16;
}

int kernel_map_declare(struct kernel_param *p, const struct kernel_map_declaration *d, struct error *e)
{
    static const uint16_t swizzles[4] = {0, 32, 64, 128}, interleaves[4] = {0, 16, 32, 0},
                          widths[4] = {0, 64, 128, 256};
    const int swizzle = number_of(swizzles, d->swizzle), interleave = number_of(interleaves, d->interleave);
    const int promotion = number_of(widths, d->l2);

    if (d->n_box > PLAN_MAP_RANK)
        return refuse(p, "box", "a tensor map has at most 5 dimensions", e);
    if (p->rank >= 0 && (unsigned)p->rank != d->n_box)
        return refuse(p, "box", "differs from the number of the tensor's dimensions", e);
    if (swizzle < 0)
        return refuse(p, "swizzle", "must be 0, 32, 64 or 128", e);
    if (interleave < 0)
        return refuse(p, "interleave", "must be 0, 16 or 32", e);
    if (promotion < 0)
        return refuse(p, "l2", "must be 0, 64, 128 or 256", e);
    if (interleave && d->n_box < 3)
        return refuse(p, "interleave", "a tensor with it has at least 3 dimensions", e);
    if (d->interleave == INTERLEAVED && d->swizzle != 32)
        return refuse(p, "swizzle", "must be 32 with interleave 32", e);
    if (d->nan && !is_float(types[p->dtype]))
        return refuse(p, "nan", "is for f16, bf16, f32 and f64", e);
    if (d->tf32 && p->dtype != DTYPE_F32)
        return refuse(p, "tf32", "is for f32", e);
    p->rank = (int)d->n_box;
    p->strided = true;
    p->size = PLAN_MAP_BYTES;
    p->align = p->align > ALIGNMENT ? p->align : ALIGNMENT;
    if (d->interleave == INTERLEAVED && p->align < INTERLEAVED)
        p->align = INTERLEAVED;
    p->map.rank = (uint8_t)d->n_box;
    p->map.type = d->tf32 ? TYPE_TF32 : types[p->dtype];
    p->map.swizzle = (uint8_t)swizzle;
    p->map.interleave = (uint8_t)interleave;
    p->map.promotion = (uint8_t)promotion;
    p->map.fill = d->nan;
    return set_steps(p, d, e);
}

/* ---- a call ---- */

/* Puts the argument's key before the error. Returns -1. */
static int at_argument(const struct kernel_param *p, struct error *e)
{
    char key[24];

    snprintf(key, sizeof(key), "args[%u]", p->index);
    return kernel_at_key(key, e);
}

static int set_extents(const struct kernel_param *p, const struct tensor *t, struct plan_map *m, struct error *e)
{
    const uint64_t most = UINT64_C(1) << 32;

    for (unsigned i = 0; i < m->rank; i++) {
        const int64_t size = t->shape[m->rank - 1 - i];

        if (size < 1 || (uint64_t)size > most) {
            error_set(e, ERROR_SHAPE_MISMATCH,
                      "%s has size %lld in dimension %u, but a tensor map takes 1 to 2^32: launch nothing for an empty "
                      "tensor",
                      p->name, (long long)size, m->rank - 1 - i);
            return at_argument(p, e);
        }
        m->extents[i] = (uint64_t)size;
    }
    return 0;
}

/* Sets the strides. A dimension of one element has no stride; it gets one that maps take. */
static int set_strides(const struct kernel_param *p, const struct tensor *t, struct plan_map *m, struct error *e)
{
    const uint64_t size = dtype_size(p->dtype), most = UINT64_C(1) << 40;
    const uint64_t multiple = m->interleave == INTERLEAVE_32 ? INTERLEAVED : ALIGNMENT;
    const unsigned last = m->rank - 1U;
    uint64_t before = (m->extents[0] * size + multiple - 1) / multiple * multiple;

    if (t->shape[last] > 1 && t->strides[last] != 1) {
        error_set(e, ERROR_SHAPE_MISMATCH,
                  "%s has stride %lld in its last dimension, but a tensor map takes tensors whose last dimension is "
                  "contiguous",
                  p->name, (long long)t->strides[last]);
        return at_argument(p, e);
    }
    for (unsigned i = 1; i < m->rank; i++) {
        const int64_t stride = t->strides[last - i];
        const uint64_t bytes = (uint64_t)stride * size;

        if (m->extents[i] == 1) {
            m->strides[i - 1] = before;
            continue;
        }
        if (stride <= 0 || (uint64_t)stride >= most / size || bytes % multiple) {
            error_set(
                e, ERROR_MISALIGNED,
                "%s has stride %lld in dimension %u, %lld bytes, but a tensor map takes multiples of %u bytes from "
                "%u on, below 2^40: pad the rows",
                p->name, (long long)stride, last - i, (long long)bytes, (unsigned)multiple, (unsigned)multiple);
            return at_argument(p, e);
        }
        m->strides[i - 1] = before = bytes;
    }
    return 0;
}

static int set_box(const struct kernel_param *p, const struct expr_inputs *inputs, struct plan_map *m, struct error *e)
{
    static const unsigned spans[] = {0, 32, 64, 128};
    const unsigned span = spans[m->swizzle];
    unsigned row;

    for (unsigned i = 0; i < m->rank; i++) {
        const unsigned dimension = m->rank - 1U - i;
        int64_t value;

        if (expr_evaluate(p->map.box[dimension], inputs, &value, e) < 0)
            return at_argument(p, e);
        if (value < 1 || value > MAX_BOX) {
            error_set(e, ERROR_OUT_OF_RANGE,
                      "the box of %s is `%.60s`, %lld, in dimension %u, but it must be from 1 to %d", p->name,
                      expr_text(p->map.box[dimension]), (long long)value, dimension, MAX_BOX);
            error_detail_number(e, "value", value);
            error_detail_number(e, "min", 1);
            error_detail_number(e, "max", MAX_BOX);
            return at_argument(p, e);
        }
        m->box[i] = (uint16_t)value;
        m->steps[i] = p->map.steps[dimension];
    }
    row = m->box[0] * (unsigned)dtype_size(p->dtype);
    if (m->interleave || (row % ALIGNMENT == 0 && (!span || row <= span)))
        return 0;
    if (span)
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "the box of %s has rows of %u elements, %u bytes: with swizzle %u a tensor map takes multiples of %d "
                  "bytes, at most %u",
                  p->name, m->box[0], row, span, ALIGNMENT, span);
    else
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "the box of %s has rows of %u elements, %u bytes, but a tensor map takes multiples of %d bytes",
                  p->name, m->box[0], row, ALIGNMENT);
    return at_argument(p, e);
}

int kernel_map_describe(const struct kernel_param *p, const struct tensor *t, const struct expr_inputs *inputs,
                        const struct kernel_limits *limits, unsigned char *into, struct error *e)
{
    struct plan_map m = {.rank = p->map.rank,
                         .type = p->map.type,
                         .interleave = p->map.interleave,
                         .swizzle = p->map.swizzle,
                         .promotion = p->map.promotion,
                         .fill = p->map.fill};

    if (!t) {
        error_set(e, ERROR_SHAPE_MISMATCH, "%s is a null pointer, but the kernel takes it as a tensor map", p->name);
        return at_argument(p, e);
    }
    if (p->map.rank > limits->max_map_rank) {
        error_set(
            e, ERROR_UNSUPPORTED,
            "%s is a tensor map, which needs a device of compute capability 9.0 or newer and a driver from 12.0 on",
            p->name);
        return at_argument(p, e);
    }
    if (set_extents(p, t, &m, e) < 0 || set_strides(p, t, &m, e) < 0 || set_box(p, inputs, &m, e) < 0)
        return -1;
    memcpy(into, &m, sizeof(m));
    return 0;
}
