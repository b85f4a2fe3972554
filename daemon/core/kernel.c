/* Calls of user kernels: the arguments against the signature, the geometry against the device. */
#include "core/kernel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A call that is being planned. */
struct planning {
    const struct kernel_signature *s;
    const struct kernel_launch *launch;
    const struct kernel_limits *limits;
    struct expr_inputs inputs;
    bool may_be_empty; /* some tensors are written, and all of these are empty */
};

static const char *arg_key(const struct kernel_param *p, char into[24])
{
    snprintf(into, 24, "args[%u]", p->index);
    return into;
}

int kernel_at_key(const char *key, struct error *e)
{
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "%s: ", key);
    error_prefix(e, prefix);
    return error_detail_text(e, "key", key);
}

/* ---- Tensors ---- */

static int check_rank(const struct kernel_param *p, const struct tensor *t, struct error *e)
{
    char key[24];

    if (p->rank < 0 || t->rank == (unsigned)p->rank)
        return 0;
    error_set(e, ERROR_SHAPE_MISMATCH, "%s: %s has %u dimensions, but the kernel takes %d", arg_key(p, key), p->name,
              t->rank, p->rank);
    error_detail_text(e, "key", key);
    error_detail_number(e, "rank", t->rank);
    return error_detail_number(e, "needed", p->rank);
}

static int check_shape(const struct planning *g, const struct kernel_param *p, const struct tensor *t, struct error *e)
{
    char key[24];

    for (unsigned i = 0; i < t->rank; i++) {
        int64_t needed;

        if (!p->shape[i])
            continue;
        if (expr_evaluate(p->shape[i], &g->inputs, &needed, e) < 0)
            return kernel_at_key(arg_key(p, key), e);
        if (needed == t->shape[i])
            continue;
        error_set(e, ERROR_SHAPE_MISMATCH, "%s: %s has size %lld in dimension %u, but the kernel's `%.60s` needs %lld",
                  arg_key(p, key), p->name, (long long)t->shape[i], i, expr_text(p->shape[i]), (long long)needed);
        error_detail_text(e, "key", key);
        error_detail_number(e, "dimension", i);
        error_detail_number(e, "size", t->shape[i]);
        return error_detail_number(e, "needed", needed);
    }
    return 0;
}

static int check_elements(const struct planning *g, const struct kernel_param *p, const struct tensor *t,
                          struct error *e)
{
    int64_t needed;
    char key[24];

    if (expr_evaluate(p->elements, &g->inputs, &needed, e) < 0)
        return kernel_at_key(arg_key(p, key), e);
    if (needed <= (int64_t)t->count)
        return 0;
    error_set(e, ERROR_SHAPE_MISMATCH, "%s: %s has %llu elements, but the kernel's `%.60s` needs %lld", arg_key(p, key),
              p->name, (unsigned long long)t->count, expr_text(p->elements), (long long)needed);
    error_detail_text(e, "key", key);
    error_detail_number(e, "elements", (int64_t)t->count);
    return error_detail_number(e, "needed", needed);
}

static bool is_dense(const struct tensor *t)
{
    int64_t stride = 1;

    for (unsigned i = t->rank; i-- > 0;) {
        if (t->shape[i] == 1)
            continue;
        if (t->strides[i] != stride)
            return false;
        stride *= t->shape[i]; /* cannot overflow: the tensor was measured */
    }
    return true;
}

/* Checks the layout that a kernel assumes. */
static int check_layout(const struct planning *g, const struct kernel_param *p, const struct tensor *t, struct error *e)
{
    char key[24];

    if (t->count == 0)
        return 0;
    if (!p->strided && !is_dense(t)) {
        error_set(
            e, ERROR_SHAPE_MISMATCH,
            "%s: %s must be dense in row-major order; copy it into such a tensor, or declare the parameter strided",
            arg_key(p, key), p->name);
        return error_detail_text(e, "key", key);
    }
    if (p->align && t->offset % p->align) {
        error_set(e, ERROR_MISALIGNED,
                  "%s: %s begins at byte %llu of its buffer, but the kernel needs a multiple of %u", arg_key(p, key),
                  p->name, (unsigned long long)t->offset, p->align);
        error_detail_text(e, "key", key);
        error_detail_number(e, "offset", (int64_t)t->offset);
        return error_detail_number(e, "align", p->align);
    }
    if (p->strided && p->kind != KERNEL_IN && !g->s->alias && tensor_overlaps_itself(t)) {
        error_set(e, ERROR_OVERLAP, "%s: the strides of %s make different indices share an element", arg_key(p, key),
                  p->name);
        return error_detail_text(e, "key", key);
    }
    return 0;
}

static int check_tensor(const struct planning *g, const struct kernel_param *p, const struct tensor *t, struct error *e)
{
    char key[24];

    if (t->dtype != p->dtype) {
        error_set(e, ERROR_DTYPE_MISMATCH, "%s: %s is %s, but the kernel takes %s", arg_key(p, key), p->name,
                  dtype_name(t->dtype), dtype_name(p->dtype));
        return error_detail_text(e, "key", key);
    }
    if (check_rank(p, t, e) < 0 || (p->has_shape && check_shape(g, p, t, e) < 0) ||
        (p->elements && check_elements(g, p, t, e) < 0))
        return -1;
    return check_layout(g, p, t, e);
}

/* Refuses a null pointer for a parameter with a declared size. */
static int check_null(const struct kernel_param *p, struct error *e)
{
    char key[24];

    if (!p->elements && !p->has_shape)
        return 0;
    error_set(e, ERROR_SHAPE_MISMATCH,
              "%s: %s is a null pointer, but it is declared with a size; declare it without one to allow that",
              arg_key(p, key), p->name);
    return error_detail_text(e, "key", key);
}

static int check_tensors(struct planning *g, struct error *e)
{
    bool some = false, all_empty = true;

    for (unsigned i = 0; i < g->s->n_tensors; i++) {
        const struct tensor *t = g->inputs.tensors[i];

        if (!t) {
            if (check_null(g->s->operands[i], e) < 0)
                return -1;
            continue;
        }
        if (check_tensor(g, g->s->operands[i], t, e) < 0)
            return -1;
        if (i >= g->s->op.n_inputs) {
            some = true;
            all_empty = all_empty && t->count == 0;
        }
    }
    g->may_be_empty = some && all_empty;
    return 0;
}

/* ---- Geometry ---- */

static int missing(const char *name, struct error *e)
{
    error_set(e, ERROR_MISSING_KEY, "%s: neither the kernel nor this launch says it; give it in one of them", name);
    return error_detail_text(e, "key", name);
}

/* Describes where a number comes from: " is `ceil_div(n, 256)`, 0". */
static const char *origin(const struct expr *x, char into[96])
{
    if (!x || expr_is_constant(x))
        return "";
    snprintf(into, 96, "`%.60s` is ", expr_text(x));
    return into;
}

static int outside(const char *key, const struct expr *x, int64_t value, int64_t min, int64_t max, const char *hint,
                   struct error *e)
{
    char from[96];

    error_set(e, ERROR_OUT_OF_RANGE, "%s: %s%lld, but it must be from %lld to %lld%s", key, origin(x, from),
              (long long)value, (long long)min, (long long)max, hint);
    error_detail_text(e, "key", key);
    error_detail_number(e, "value", value);
    error_detail_number(e, "min", min);
    return error_detail_number(e, "max", max);
}

/* Sets the dimensions of a grid, block or cluster, from the launch or else from the declaration, and checks their
 * limits; missing dimensions are 1. */
static int set_dimensions(const struct planning *g, const char *name, const struct kernel_dimensions *declared,
                          const struct kernel_launch_dimensions *given, int64_t min, const unsigned *max,
                          const char *hint, unsigned ret[3], struct error *e)
{
    unsigned n = given->n ? given->n : declared->n;
    char key[16];

    ret[0] = ret[1] = ret[2] = 1;
    for (unsigned i = 0; i < n && i < 3; i++) {
        const struct expr *x = given->n ? NULL : declared->at[i];
        int64_t value = given->at[i];

        if (x && expr_evaluate(x, &g->inputs, &value, e) < 0) {
            snprintf(key, sizeof(key), "%s[%u]", name, i);
            return kernel_at_key(key, e);
        }
        if (value < min || value > max[i]) {
            snprintf(key, sizeof(key), "%s[%u]", name, i);
            return outside(key, x, value, min, max[i], hint, e);
        }
        ret[i] = (unsigned)value;
    }
    return 0;
}

static int set_block(const struct planning *g, struct plan_kernel *k, struct error *e)
{
    const struct kernel_limits *l = g->limits;
    unsigned limit = l->max_threads;
    uint64_t threads;

    if (l->function_threads && l->function_threads < limit)
        limit = l->function_threads;
    if (set_dimensions(g, "block", &g->s->block, &g->launch->block, 1, l->max_block, " on this device", k->block, e) <
        0)
        return -1;
    threads = (uint64_t)k->block[0] * k->block[1] * k->block[2];
    if (threads <= limit)
        return 0;
    error_set(e, ERROR_OUT_OF_RANGE, "block: %u x %u x %u are %llu threads, but %s at most %u", k->block[0],
              k->block[1], k->block[2], (unsigned long long)threads,
              limit < l->max_threads ? "this kernel, for its registers or its launch bounds, runs with"
                                     : "a block of this device has",
              limit);
    error_detail_text(e, "key", "block");
    error_detail_number(e, "value", (int64_t)threads);
    error_detail_number(e, "min", 1);
    return error_detail_number(e, "max", limit);
}

static int set_shared(const struct planning *g, struct plan_kernel *k, struct error *e)
{
    const struct kernel_limits *l = g->limits;
    const struct expr *x = g->launch->has_shared ? NULL : g->s->shared;
    int64_t value = g->launch->has_shared ? g->launch->shared : 0;
    int64_t max = l->max_shared > l->static_shared ? l->max_shared - l->static_shared : 0;

    if (x && expr_evaluate(x, &g->inputs, &value, e) < 0)
        return kernel_at_key("shared", e);
    if (value < 0 || value > max)
        return outside("shared", x, value, 0, max,
                       l->static_shared ? " bytes: a block's on this device, less the kernel's static ones"
                                        : " bytes, a block's on this device",
                       e);
    k->shared_bytes = (unsigned)value;
    return 0;
}

static int set_cluster(const struct planning *g, struct plan_kernel *k, struct error *e)
{
    const unsigned *c = k->cluster, limit = g->limits->max_cluster ? g->limits->max_cluster : 1;
    const unsigned max[3] = {limit, limit, limit};
    uint64_t blocks;

    if (set_dimensions(g, "cluster", &g->s->cluster, &g->launch->cluster, 1, max, " on this device", k->cluster, e) < 0)
        return -1;
    blocks = (uint64_t)c[0] * c[1] * c[2];
    if (blocks > limit)
        return outside("cluster", NULL, (int64_t)blocks, 1, limit, " blocks on this device", e);
    for (unsigned i = 0; i < 3; i++)
        if (k->grid[i] % c[i]) {
            char key[16];

            snprintf(key, sizeof(key), "grid[%u]", i);
            error_set(e, ERROR_INVALID_ARGUMENT, "%s: %u is no multiple of the cluster's %u", key, k->grid[i], c[i]);
            error_detail_text(e, "key", key);
            error_detail_number(e, "value", k->grid[i]);
            return error_detail_number(e, "cluster", c[i]);
        }
    if (blocks == 1)
        memset(k->cluster, 0, sizeof(k->cluster));
    return 0;
}

static int set_geometry(const struct planning *g, struct plan_kernel *k, struct error *e)
{
    const char *hint = g->may_be_empty ? "" : " (0 only where every tensor that is written is empty)";

    if (!g->launch->grid.n && !g->s->grid.n)
        return missing("grid", e);
    if (!g->launch->block.n && !g->s->block.n)
        return missing("block", e);
    if (set_dimensions(g, "grid", &g->s->grid, &g->launch->grid, !g->may_be_empty, g->limits->max_grid, hint, k->grid,
                       e) < 0)
        return -1;
    k->shared_bytes = 0;
    memset(k->cluster, 0, sizeof(k->cluster));
    if (!k->grid[0] || !k->grid[1] || !k->grid[2]) {
        k->block[0] = k->block[1] = k->block[2] = 1; /* nothing is launched */
        return 0;
    }
    if (set_block(g, k, e) < 0 || set_shared(g, k, e) < 0)
        return -1;
    return g->launch->cluster.n || g->s->cluster.n ? set_cluster(g, k, e) : 0;
}

/* ---- The plan ---- */

static bool is_sparse(const struct tensor *t)
{
    return t && t->count * dtype_size(t->dtype) != t->extent;
}

static int set_flags(const struct kernel_signature *s, const struct kernel_limits *limits, struct plan_kernel *k,
                     struct error *e)
{
    if (s->cooperative && !limits->cooperative) {
        error_set(e, ERROR_UNSUPPORTED, "cooperative: the device, or its driver, has no cooperative launches");
        return error_detail_text(e, "key", "cooperative");
    }
    k->cooperative = s->cooperative;
    k->pdl = s->pdl && limits->pdl;
    return 0;
}

int kernel_check_cooperative(const struct plan_kernel *k, uint64_t most, struct error *e)
{
    const uint64_t blocks = (uint64_t)k->grid[0] * k->grid[1] * k->grid[2];

    if (blocks <= most)
        return 0;
    error_set(
        e, ERROR_OUT_OF_RANGE,
        "grid: %u x %u x %u are %llu blocks, but all blocks of a cooperative kernel run at one time, and the device "
        "has room for %llu with %u threads and %u bytes of dynamic shared memory each",
        k->grid[0], k->grid[1], k->grid[2], (unsigned long long)blocks, (unsigned long long)most,
        k->block[0] * k->block[1] * k->block[2], k->shared_bytes);
    error_detail_text(e, "key", "grid");
    error_detail_number(e, "value", (int64_t)blocks);
    error_detail_number(e, "min", 1);
    return error_detail_number(e, "max", (int64_t)most);
}

/* Lists the offsets behind the parameters, see struct plan_kernel. */
static void list_params(const struct kernel_signature *s, struct plan_kernel *k)
{
    unsigned char *at = k->params + s->param_bytes;

    for (unsigned i = 0; i < s->n_params; i++, at += sizeof(uint16_t))
        memcpy(at, &s->params[i].offset, sizeof(uint16_t));
    k->n_listed = (uint16_t)s->n_params;
    k->param_bytes = (uint16_t)(at - k->params);
}

static void set_params(const struct kernel_signature *s, const struct tensor *const *tensors,
                       const struct kernel_arg *args, struct plan_kernel *k)
{
    k->param_bytes = (uint16_t)s->param_bytes;
    k->n_pointers = (uint16_t)s->n_tensors;
    k->n_listed = 0;
    k->sparse = k->inout = k->maps = 0;
    memset(k->params, 0, s->param_bytes);
    for (unsigned i = 0; i < s->n_params; i++) {
        const struct kernel_param *p = &s->params[i];

        if (p->kind == KERNEL_SCALAR) {
            memcpy(k->params + p->offset, p->structure ? args[i].bytes : args[i].value, p->size);
        } else {
            k->pointers[p->operand] = p->offset;
            k->sparse |= (uint16_t)(is_sparse(tensors[p->operand]) << p->operand);
            k->inout |= (uint16_t)((p->kind == KERNEL_INOUT) << p->operand);
            k->maps |= (uint16_t)((p->map.rank != 0) << p->operand);
        }
    }
    if (s->has_maps)
        list_params(s, k);
}

/* Describes the tensor maps. Where nothing runs, the tensors need not be describable. */
static int set_maps(const struct planning *g, struct plan *plan, struct error *e)
{
    struct plan_kernel *k = &plan->kernel;

    for (unsigned i = 0; k->maps >> i && !plan_is_empty(plan); i++)
        if (k->maps >> i & 1 && kernel_map_describe(g->s->operands[i], g->inputs.tensors[i], &g->inputs, g->limits,
                                                    k->params + k->pointers[i], e) < 0)
            return -1;
    return 0;
}

int kernel_plan(const struct kernel_signature *s, const struct tensor *const *tensors, const struct kernel_arg *args,
                const struct kernel_launch *launch, const struct kernel_limits *limits, struct plan *ret_plan,
                struct error *e)
{
    int64_t integers[KERNEL_MAX_PARAMS];
    struct planning g = {
        .s = s,
        .launch = launch,
        .limits = limits,
        .inputs = {.integers = integers, .tensors = tensors, .multiprocessors = limits->multiprocessors},
    };

    for (unsigned i = 0; i < s->n_params; i++)
        if (s->integers >> i & 1 && kernel_scalar_to_int(&s->params[i], args[i].value, &integers[i], e) < 0)
            return -1;
    if (check_tensors(&g, e) < 0 || set_geometry(&g, &ret_plan->kernel, e) < 0 ||
        set_flags(s, limits, &ret_plan->kernel, e) < 0)
        return -1;
    ret_plan->kind = PLAN_KERNEL;
    ret_plan->dtype = s->n_tensors ? s->operands[0]->dtype : DTYPE_F32;
    ret_plan->out_dtype = ret_plan->dtype;
    set_params(s, tensors, args, &ret_plan->kernel);
    return ret_plan->kernel.maps ? set_maps(&g, ret_plan, e) : 0;
}

/* ---- scalars: numbers as a client sends them, into the bytes that the kernel's parameter has ---- */

/* Ranges of the integer types. */
static const struct range {
    enum dtype dtype;
    int64_t min;
    uint64_t max;
} ranges[] = {
    {DTYPE_I8, INT8_MIN, INT8_MAX},    {DTYPE_U8, 0, UINT8_MAX},          {DTYPE_I16, INT16_MIN, INT16_MAX},
    {DTYPE_U16, 0, UINT16_MAX},        {DTYPE_I32, INT32_MIN, INT32_MAX}, {DTYPE_U32, 0, UINT32_MAX},
    {DTYPE_I64, INT64_MIN, INT64_MAX}, {DTYPE_U64, 0, UINT64_MAX},        {DTYPE_BOOL, 0, 1},
};

static const struct range *range_of(enum dtype dtype)
{
    for (unsigned i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (ranges[i].dtype == dtype)
            return &ranges[i];
    return NULL;
}

bool kernel_is_integer(enum dtype dtype)
{
    return range_of(dtype) != NULL;
}

static int add_key(const struct kernel_param *p, struct error *e)
{
    char key[16];

    snprintf(key, sizeof(key), "args[%u]", p->index);
    return error_detail_text(e, "key", key);
}

static int wrong_type(const struct kernel_param *p, const char *given, const char *advice, struct error *e)
{
    error_set(e, ERROR_WRONG_TYPE, "args[%u]: %s is a scalar of type %s, and the argument is a %s; %s", p->index,
              p->name, dtype_name(p->dtype), given, advice);
    return add_key(p, e);
}

static int outside_range(const struct kernel_param *p, const struct range *r, const char *value, struct error *e)
{
    char max[24];

    snprintf(max, sizeof(max), "%llu", (unsigned long long)r->max);
    error_set(e, ERROR_OUT_OF_RANGE, "args[%u]: %s is %s, but a scalar of type %s is from %lld to %s", p->index,
              p->name, value, dtype_name(p->dtype), (long long)r->min, max);
    add_key(p, e);
    error_detail_number(e, "min", r->min);
    if (r->max > INT64_MAX)
        return error_detail_text(e, "max", max);
    return error_detail_number(e, "max", (int64_t)r->max);
}

/* To a format of 1 sign bit, `exponent` bits and `mantissa` bits, rounded to nearest, ties to even, in one step. Larger
 * values become infinite. */
static uint16_t narrow(double value, unsigned exponent, unsigned mantissa)
{
    const int bias = (1 << (exponent - 1)) - 1;
    const uint16_t infinity = (uint16_t)(((1U << exponent) - 1) << mantissa);
    uint64_t bits, significand, q, rest, half;
    unsigned shift = 52 - mantissa;
    uint16_t sign;
    int power;

    memcpy(&bits, &value, sizeof(bits));
    sign = (uint16_t)(bits >> 63 << (exponent + mantissa));
    power = (int)(bits >> 52 & 0x7ff) - 1023;
    significand = bits & ((UINT64_C(1) << 52) - 1);
    if (power == 1024) /* a NaN stays quiet and keeps its upper bits */
        return (uint16_t)(sign | infinity | (significand ? significand >> shift | 1U << (mantissa - 1) : 0));
    if (power == -1023) /* zero, and values far below the smallest */
        return sign;
    significand |= UINT64_C(1) << 52;
    if (power < 1 - bias)
        shift += (unsigned)(1 - bias - power);
    if (shift > 54)
        return sign;
    q = significand >> shift;
    rest = significand & ((UINT64_C(1) << shift) - 1);
    half = UINT64_C(1) << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    /* A normal significand's leading bit counts as one in the exponent's field, and so does a carry. */
    if (power >= 1 - bias)
        q += (uint64_t)(power + bias - 1) << mantissa;
    return (uint16_t)(sign | (q < infinity ? q : infinity));
}

/* The bytes of a float parameter; false when a finite value becomes infinite. */
static bool put_float(enum dtype dtype, double value, unsigned char ret[8])
{
    uint16_t half;
    float single;

    memset(ret, 0, 8);
    switch (dtype) {
    case DTYPE_F64:
        memcpy(ret, &value, sizeof(value));
        return true;
    case DTYPE_F32:
        single = (float)value;
        memcpy(ret, &single, sizeof(single));
        return !isinf(single) || isinf(value);
    default:
        half = dtype == DTYPE_F16 ? narrow(value, 5, 10) : narrow(value, 8, 7);
        memcpy(ret, &half, sizeof(half));
        return isinf(value) || isnan(value) || (half & 0x7fff) != (dtype == DTYPE_F16 ? 0x7c00 : 0x7f80);
    }
}

static int set_float(const struct kernel_param *p, double value, unsigned char ret[8], struct error *e)
{
    unsigned char bytes[8];

    if (!put_float(p->dtype, value, bytes)) {
        error_set(e, ERROR_OUT_OF_RANGE, "args[%u]: %s is %g, which is too large for a scalar of type %s", p->index,
                  p->name, value, dtype_name(p->dtype));
        return add_key(p, e);
    }
    memcpy(ret, bytes, sizeof(bytes));
    return 0;
}

/* The machines that this runs on, and their devices, have the least significant byte first. */
static int set_integer(uint64_t bits, unsigned char ret[8])
{
    memcpy(ret, &bits, sizeof(bits));
    return 0;
}

int kernel_scalar_from_int(const struct kernel_param *p, int64_t value, unsigned char ret[8], struct error *e)
{
    const struct range *r = range_of(p->dtype);
    char text[24];

    if (!r)
        return set_float(p, (double)value, ret, e);
    if (value >= r->min && (value < 0 || (uint64_t)value <= r->max))
        return set_integer((uint64_t)value, ret);
    snprintf(text, sizeof(text), "%lld", (long long)value);
    return outside_range(p, r, text, e);
}

int kernel_scalar_from_uint(const struct kernel_param *p, uint64_t value, unsigned char ret[8], struct error *e)
{
    const struct range *r = range_of(p->dtype);
    char text[24];

    if (!r)
        return set_float(p, (double)value, ret, e);
    if (value <= r->max)
        return set_integer(value, ret);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return outside_range(p, r, text, e);
}

int kernel_scalar_from_float(const struct kernel_param *p, double value, unsigned char ret[8], struct error *e)
{
    if (range_of(p->dtype))
        return wrong_type(p, "float", "convert it first", e);
    return set_float(p, value, ret, e);
}

int kernel_scalar_from_bool(const struct kernel_param *p, bool value, unsigned char ret[8], struct error *e)
{
    if (!range_of(p->dtype))
        return wrong_type(p, "bool", "give 0.0 or 1.0", e);
    return set_integer(value, ret);
}

int kernel_scalar_from_bytes(const struct kernel_param *p, const void *bytes, size_t length, struct kernel_arg *ret,
                             struct error *e)
{
    char given[48] = "the argument is something else";

    if (bytes && length == p->size) {
        ret->bytes = bytes;
        return 0;
    }
    if (bytes)
        snprintf(given, sizeof(given), "the argument has %zu", length);
    error_set(e, ERROR_WRONG_TYPE, "args[%u]: %s is a structure of %u bytes: give its bytes; %s", p->index, p->name,
              p->size, given);
    return add_key(p, e);
}

int kernel_scalar_to_int(const struct kernel_param *p, const unsigned char value[8], int64_t *ret, struct error *e)
{
    const struct range *r = range_of(p->dtype);
    uint64_t bits, mask = UINT64_MAX >> (64 - 8 * p->size);

    memcpy(&bits, value, sizeof(bits));
    bits &= mask;
    if (r->min < 0 && bits & (mask ^ mask >> 1))
        bits |= ~mask;
    if (r->min == 0 && bits > INT64_MAX) {
        error_set(e, ERROR_OUT_OF_RANGE, "args[%u]: %s is %llu, but expressions compute with numbers below 2^63",
                  p->index, p->name, (unsigned long long)bits);
        add_key(p, e);
        error_detail_number(e, "min", 0);
        return error_detail_number(e, "max", INT64_MAX);
    }
    *ret = (int64_t)bits;
    return 0;
}
