/* Signatures of user kernels: from a declaration, held against the binary; and their tensor maps, for declarations and
 * calls: the conditions of cuTensorMapEncodeTiled() (see cuda.h), checked with clear errors. */
#include "core/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_BOX = 256,   /* elements in each dimension */
    MAX_STEP = 8,    /* elements */
    ALIGNMENT = 16,  /* bytes: alignment of the address, of strides, of a box's row */
    INTERLEAVED = 32 /* bytes: alignment with interleave 32 */
};

/* ---- a tensor map's declaration ---- */

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

static int refuse_map(const struct kernel_param *p, const char *key, const char *why, struct error *e)
{
    char path[32];

    snprintf(path, sizeof(path), "params[%u].map.", p->index);
    return error_at(e, ERROR_INVALID_ARGUMENT, path, key, why);
}

static int set_steps(struct kernel_param *p, const struct kernel_map_declaration *d, struct error *e)
{
    if (d->n_steps && d->n_steps != d->n_box)
        return refuse_map(p, "steps", "has as many numbers as box", e);
    for (unsigned i = 0; i < d->n_box; i++) {
        const int64_t step = d->n_steps ? d->steps[i] : 1;

        if (step < 1 || step > MAX_STEP)
            return refuse_map(p, "steps", "each must be from 1 to 8", e);
        if (i + 1 == d->n_box && step != 1 && !d->interleave)
            return refuse_map(p, "steps", "the last must be 1 without interleave", e);
        p->map.steps[i] = (uint8_t)step;
    }
    return 0;
}

static bool is_float(unsigned type)
{
    return type >= TYPE_F16 && type <= TYPE_BF16;
}

/* Checks the declaration of a tensor map, all but its expressions, and sets the parameter's rank. */
static int kernel_map_declare(struct kernel_param *p, const struct kernel_map_declaration *d, struct error *e)
{
    static const uint16_t swizzles[4] = {0, 32, 64, 128}, interleaves[4] = {0, 16, 32, 0},
                          widths[4] = {0, 64, 128, 256};
    const int swizzle = number_of(swizzles, d->swizzle), interleave = number_of(interleaves, d->interleave);
    const int promotion = number_of(widths, d->l2);

    if (d->n_box > PLAN_MAP_RANK)
        return refuse_map(p, "box", "a tensor map has at most 5 dimensions", e);
    if (p->rank >= 0 && (unsigned)p->rank != d->n_box)
        return refuse_map(p, "box", "differs from the number of the tensor's dimensions", e);
    if (swizzle < 0)
        return refuse_map(p, "swizzle", "must be 0, 32, 64 or 128", e);
    if (interleave < 0)
        return refuse_map(p, "interleave", "must be 0, 16 or 32", e);
    if (promotion < 0)
        return refuse_map(p, "l2", "must be 0, 64, 128 or 256", e);
    if (interleave && d->n_box < 3)
        return refuse_map(p, "interleave", "a tensor with it has at least 3 dimensions", e);
    if (d->interleave == INTERLEAVED && d->swizzle != 32)
        return refuse_map(p, "swizzle", "must be 32 with interleave 32", e);
    if (d->nan && !is_float(types[p->dtype]))
        return refuse_map(p, "nan", "is for f16, bf16, f32 and f64", e);
    if (d->tf32 && p->dtype != DTYPE_F32)
        return refuse_map(p, "tf32", "is for f32", e);
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

/* ---- a tensor map of a call ---- */

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

/* ---- the signature ---- */

/* A plan also lists the offsets of those with maps. */
enum { PARAM_BYTES_MAX = KERNELS_PARAM_BYTES_MAX };

_Static_assert(PARAM_BYTES_MAX + KERNEL_MAX_PARAMS * (int)sizeof(uint16_t) <= KERNEL_PARAM_BYTES, "all fit a plan");

_Static_assert((int)KERNEL_MAX_PARAMS * 8 <= (int)PARAM_BYTES_MAX, "a plan has room for the parameters");
_Static_assert((int)KERNEL_MAX_PARAMS <= (int)EXPR_MAX_NAMES, "each parameter can be a name in an expression");

enum { POINTER_SIZE = 8, STRUCTURE_ALIGN = 16, MAX_ENTRY = 4096 };

static int refuse(struct error *e, enum error_code code, unsigned param, const char *key, const char *why)
{
    char path[24];

    snprintf(path, sizeof(path), "params[%u]", param);
    return error_at(e, code, path, key, why);
}

static int too_many(struct error *e, const char *key, const char *what, unsigned value, unsigned limit)
{
    error_set(e, ERROR_LIMIT_EXCEEDED, "%s: %u %s, but a kernel has at most %u", key, value, what, limit);
    error_detail_text(e, "key", key);
    error_detail_number(e, "limit", limit);
    return error_detail_number(e, "value", value);
}

static bool is_identifier(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char c = text[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (i > 0 && c >= '0' && c <= '9')))
            return false;
    }
    return length > 0;
}

static int set_name(struct kernel_signature *s, unsigned i, const struct kernel_param_declaration *d, struct error *e)
{
    struct kernel_param *p = &s->params[i];

    if (!is_identifier(d->name, d->name_length))
        return refuse(e, ERROR_INVALID_ARGUMENT, i, ".name", "must be a C identifier");
    if (d->name_length >= sizeof(p->name)) {
        refuse(e, ERROR_LIMIT_EXCEEDED, i, ".name", "is too long");
        error_detail_number(e, "limit", sizeof(p->name) - 1);
        return error_detail_number(e, "value", (int64_t)d->name_length);
    }
    memcpy(p->name, d->name, d->name_length);
    for (unsigned j = 0; j < i; j++)
        if (!strcmp(s->params[j].name, p->name))
            return refuse(e, ERROR_INVALID_ARGUMENT, i, ".name", "another parameter has this name");
    return 0;
}

static int set_scalar(struct kernel_param *p, const struct kernel_param_declaration *d, struct error *e)
{
    if (d->n_shape >= 0 || d->rank >= 0 || d->elements.type != KERNEL_ABSENT || d->align || d->strided || d->map.n_box)
        return refuse(e, ERROR_INVALID_ARGUMENT, p->index, "",
                      "a scalar has no shape, elements, rank, align, strided or map");
    if (p->dtype == DTYPE_F8_E4M3 || p->dtype == DTYPE_F8_E5M2)
        return refuse(e, ERROR_UNKNOWN_DTYPE, p->index, ".dtype", "a scalar cannot be of this type, only a tensor");
    if (d->lanes > PARAM_BYTES_MAX / dtype_size(p->dtype))
        return too_many(e, "params", "bytes of parameters", (unsigned)(d->lanes * dtype_size(p->dtype)),
                        PARAM_BYTES_MAX);
    p->structure = d->lanes > 1;
    p->size = (uint16_t)(dtype_size(p->dtype) * (p->structure ? d->lanes : 1));
    return 0;
}

static int set_tensor(struct kernel_param *p, const struct kernel_param_declaration *d, struct error *e)
{
    if (d->lanes > 1)
        return refuse(e, ERROR_INVALID_ARGUMENT, p->index, ".lanes", "is for scalars only");
    if (d->n_shape > TENSOR_MAX_RANK || d->rank > TENSOR_MAX_RANK)
        return refuse(e, ERROR_INVALID_ARGUMENT, p->index, d->n_shape > TENSOR_MAX_RANK ? ".shape" : ".rank",
                      "a tensor has at most 8 dimensions");
    if (d->n_shape >= 0 && d->rank >= 0 && d->rank != d->n_shape)
        return refuse(e, ERROR_INVALID_ARGUMENT, p->index, ".rank", "differs from the number of dimensions in shape");
    if ((d->align & (d->align - 1)) || d->align > KERNEL_MAX_ALIGN)
        return refuse(e, ERROR_INVALID_ARGUMENT, p->index, ".align", "must be a power of two, at most 256");
    p->rank = d->n_shape >= 0 ? d->n_shape : d->rank < 0 ? -1 : d->rank;
    p->has_shape = d->n_shape >= 0;
    p->strided = d->strided;
    p->align = d->align > dtype_size(p->dtype) ? (unsigned)d->align : 0;
    p->size = POINTER_SIZE;
    return d->map.n_box ? kernel_map_declare(p, &d->map, e) : 0;
}

/* All of a parameter but its expressions, which may name those that follow. */
static int set_param(struct kernel_signature *s, unsigned i, const struct kernel_param_declaration *d, struct error *e)
{
    struct kernel_param *p = &s->params[i];

    *p = (struct kernel_param){.index = i, .kind = d->kind, .dtype = d->dtype, .rank = -1};
    if (set_name(s, i, d, e) < 0)
        return -1;
    return d->kind == KERNEL_SCALAR ? set_scalar(p, d, e) : set_tensor(p, d, e);
}

static int size_mismatch(const struct kernel_param *p, const struct kernel_declaration *d, struct error *e)
{
    char key[16];

    snprintf(key, sizeof(key), "params[%u]", p->index);
    error_set(e, ERROR_SIGNATURE_MISMATCH,
              "%s: %s is declared as %s%s, %u bytes, but the compiled kernel's parameter %u has %u", key, p->name,
              p->structure               ? "a structure of type "
              : p->kind == KERNEL_SCALAR ? "a scalar of type "
              : p->map.rank              ? "a tensor map, a CUtensorMap"
                                         : "a tensor, a pointer",
              p->kind == KERNEL_SCALAR ? dtype_name(p->dtype) : "", p->size, p->index, d->sizes[p->index]);
    error_detail_text(e, "key", key);
    error_detail_number(e, "declared", p->size);
    return error_detail_number(e, "compiled", d->sizes[p->index]);
}

/* In C: a number's is its size. A structure's is taken to be that of the largest numbers which fill it. */
static unsigned alignment(const struct kernel_param *p)
{
    unsigned power = p->size & -(unsigned)p->size;

    return p->structure && power > STRUCTURE_ALIGN ? STRUCTURE_ALIGN : power;
}

/* Where the parameters' bytes lie, as the binary tells or as C would lay them out. */
static int lay_out(struct kernel_signature *s, const struct kernel_declaration *d, struct error *e)
{
    unsigned end = 0;

    if (d->offsets && d->n_binary != d->n_params) {
        error_set(e, ERROR_SIGNATURE_MISMATCH, "params: %u declared, but the compiled kernel %.80s has %u", d->n_params,
                  s->entry, d->n_binary);
        error_detail_text(e, "key", "params");
        error_detail_number(e, "declared", d->n_params);
        return error_detail_number(e, "compiled", d->n_binary);
    }
    for (unsigned i = 0; i < s->n_params; i++) {
        struct kernel_param *p = &s->params[i];
        unsigned align = alignment(p);
        unsigned offset = d->offsets ? d->offsets[i] : (end + align - 1U) & ~(align - 1U);

        if (d->offsets && d->sizes[i] != p->size)
            return size_mismatch(p, d, e);
        if (offset > (unsigned)(PARAM_BYTES_MAX - p->size))
            return too_many(e, "params", "bytes of parameters", offset + p->size, PARAM_BYTES_MAX);
        p->offset = (uint16_t)offset;
        s->has_maps |= p->map.rank != 0;
        end = offset + p->size > end ? offset + p->size : end;
    }
    s->param_bytes = end;
    return 0;
}

static void add_operand(struct kernel_signature *s, struct kernel_param *p)
{
    p->operand = s->n_tensors;
    s->operands[s->n_tensors++] = p;
}

static int order_operands(struct kernel_signature *s, struct error *e)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->n_params; i++)
        n += s->params[i].kind != KERNEL_SCALAR;
    if (n > KERNEL_MAX_TENSORS)
        return too_many(e, "params", "tensors", n, KERNEL_MAX_TENSORS);
    for (unsigned i = 0; i < s->n_params; i++)
        if (s->params[i].kind == KERNEL_IN)
            add_operand(s, &s->params[i]);
    s->op.n_inputs = s->n_tensors;
    for (unsigned i = 0; i < s->n_params; i++)
        if (s->params[i].kind == KERNEL_OUT || s->params[i].kind == KERNEL_INOUT)
            add_operand(s, &s->params[i]);
    s->op.n_outputs = s->n_tensors - s->op.n_inputs;
    return 0;
}

/* A number or an expression; NULL where there is none. */
static int set_value(struct kernel_signature *s, const struct expr_scope *scope, const struct kernel_value *v,
                     const char *key, struct expr **ret, struct error *e)
{
    if (v->type == KERNEL_ABSENT)
        return 0;
    if ((v->type == KERNEL_NUMBER ? expr_constant(v->number, ret, e) : expr_parse(v->text, v->length, scope, ret, e)) <
        0)
        return kernel_at_key(key, e);
    s->integers |= expr_integers_used(*ret);
    return 0;
}

static int set_dimensions(struct kernel_signature *s, const struct expr_scope *scope,
                          const struct kernel_dimensions_declaration *d, const char *name,
                          struct kernel_dimensions *ret, struct error *e)
{
    char key[16];

    if (d->n > 3) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%s: %u numbers, but there are at most 3 dimensions", name, d->n);
        return error_detail_text(e, "key", name);
    }
    ret->n = d->n;
    for (unsigned i = 0; i < d->n; i++) {
        snprintf(key, sizeof(key), "%s[%u]", name, i);
        if (set_value(s, scope, &d->at[i], key, &ret->at[i], e) < 0)
            return -1;
        if (!ret->at[i]) {
            error_set(e, ERROR_INVALID_ARGUMENT, "%s: must be a number or an expression", key);
            return error_detail_text(e, "key", key);
        }
    }
    return 0;
}

static int set_param_expressions(struct kernel_signature *s, const struct expr_scope *scope, unsigned i,
                                 const struct kernel_param_declaration *d, struct error *e)
{
    struct kernel_param *p = &s->params[i];
    char key[40];

    if (p->kind == KERNEL_SCALAR)
        return 0;
    for (int j = 0; j < d->n_shape; j++) {
        snprintf(key, sizeof(key), "params[%u].shape[%d]", i, j);
        if (set_value(s, scope, &d->shape[j], key, &p->shape[j], e) < 0)
            return -1;
    }
    for (unsigned j = 0; j < p->map.rank; j++) {
        snprintf(key, sizeof(key), "params[%u].map.box[%u]", i, j);
        if (set_value(s, scope, &d->map.box[j], key, &p->map.box[j], e) < 0)
            return -1;
    }
    snprintf(key, sizeof(key), "params[%u].elements", i);
    return set_value(s, scope, &d->elements, key, &p->elements, e);
}

static int set_expressions(struct kernel_signature *s, const struct kernel_declaration *d, struct error *e)
{
    struct expr_name names[KERNEL_MAX_PARAMS];
    struct expr_scope scope = {.names = names, .n = s->n_params};

    for (unsigned i = 0; i < s->n_params; i++) {
        const struct kernel_param *p = &s->params[i];
        enum expr_kind kind = kernel_is_integer(p->dtype) && !p->structure ? EXPR_INTEGER : EXPR_UNUSABLE;

        if (p->kind == KERNEL_SCALAR)
            names[i] = (struct expr_name){.name = p->name, .kind = kind, .index = i};
        else
            names[i] = (struct expr_name){p->name, EXPR_TENSOR, p->operand, p->rank};
    }
    for (unsigned i = 0; i < s->n_params; i++)
        if (set_param_expressions(s, &scope, i, &d->params[i], e) < 0)
            return -1;
    if (set_dimensions(s, &scope, &d->grid, "grid", &s->grid, e) < 0 ||
        set_dimensions(s, &scope, &d->block, "block", &s->block, e) < 0 ||
        set_dimensions(s, &scope, &d->cluster, "cluster", &s->cluster, e) < 0)
        return -1;
    return set_value(s, &scope, &d->shared, "shared", &s->shared, e);
}

static void free_dimensions(struct kernel_dimensions *d)
{
    for (unsigned i = 0; i < 3; i++)
        d->at[i] = expr_free(d->at[i]);
}

struct kernel_signature *kernel_signature_free(struct kernel_signature *s)
{
    if (!s)
        return NULL;
    for (unsigned i = 0; i < s->n_params; i++) {
        for (unsigned j = 0; j < TENSOR_MAX_RANK; j++)
            expr_free(s->params[i].shape[j]);
        for (unsigned j = 0; j < PLAN_MAP_RANK; j++)
            expr_free(s->params[i].map.box[j]);
        expr_free(s->params[i].elements);
    }
    free_dimensions(&s->grid);
    free_dimensions(&s->block);
    free_dimensions(&s->cluster);
    expr_free(s->shared);
    free(s->entry);
    free(s);
    return NULL;
}

int kernel_signature_new(const struct kernel_declaration *d, struct kernel_signature **ret, struct error *e)
{
    struct kernel_signature *s;

    if (d->n_params > KERNEL_MAX_PARAMS)
        return too_many(e, "params", "parameters", d->n_params, KERNEL_MAX_PARAMS);
    if (d->entry_length == 0 || d->entry_length > MAX_ENTRY)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "entry", "must be the name of a compiled function");
    if (d->cooperative && d->pdl)
        return error_at(e, ERROR_INVALID_ARGUMENT, "", "pdl",
                        "not with cooperative: such a kernel begins when all its blocks have room");
    s = calloc(1, sizeof(*s) + d->n_params * sizeof(s->params[0]));
    if (!s || !(s->entry = strndup(d->entry, d->entry_length))) {
        free(s);
        return error_set(e, ERROR_OUT_OF_MEMORY, "the daemon has too little memory for a kernel");
    }
    s->alias = d->alias;
    s->cooperative = d->cooperative;
    s->pdl = d->pdl;
    s->n_params = d->n_params;
    s->op = (struct op){.id = OP_COUNT, .code = d->code, .name = s->entry, .summary = "", .doc = "", .dtypes = ~0U};
    for (unsigned i = 0; i < d->n_params; i++)
        if (set_param(s, i, &d->params[i], e) < 0)
            goto drop_signature;
    if (lay_out(s, d, e) < 0 || order_operands(s, e) < 0 || set_expressions(s, d, e) < 0)
        goto drop_signature;
    *ret = s;
    return 0;
drop_signature:
    kernel_signature_free(s);
    return -1;
}
