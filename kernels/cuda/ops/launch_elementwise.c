/* Launches of the elementwise kernels and of the strided copy. Thread: any. */
#include <string.h>

#include "plan_launch.h"

/* Offsets and counts below this are computed in 32 bits. */
#define NARROW_LIMIT ((uint64_t)1 << 31)

/* Side of the square that a block of a transposing launch takes. */
enum { SQUARE_SIDE_MAX = 32, SQUARE_SIDE_MIN = 8 };

struct names {
    const char *vector, *strided, *strided64;
};

#define NAMES(name)                                                                                                    \
    {                                                                                                                  \
        "kops_" #name "_vector", "kops_" #name "_strided", "kops_" #name "_strided64"                                  \
    }

#define NAMES_FLOATS(op)                                                                                               \
    [DTYPE_F32] = NAMES(op##_f32), [DTYPE_F64] = NAMES(op##_f64), [DTYPE_F16] = NAMES(op##_f16),                       \
    [DTYPE_BF16] = NAMES(op##_bf16)

/* Sums and products of signed integers have the bits of the unsigned ones. */
#define NAMES_NUMBERS(op)                                                                                              \
    NAMES_FLOATS(op), [DTYPE_I8] = NAMES(op##_u8), [DTYPE_U8] = NAMES(op##_u8), [DTYPE_I16] = NAMES(op##_u16),         \
                      [DTYPE_U16] = NAMES(op##_u16), [DTYPE_I32] = NAMES(op##_u32), [DTYPE_U32] = NAMES(op##_u32),     \
                      [DTYPE_I64] = NAMES(op##_u64), [DTYPE_U64] = NAMES(op##_u64)

enum {
#define X(NAME, name, value, size) +1
    DTYPES = 1 KOPS_DTYPES(X) /* an array indexed by dtype */
#undef X
};

static const struct names op_names[OP_COUNT][DTYPES] = {
#define X(WITH, NAME, name, inputs, dtypes) [OP_##NAME] = {NAMES_##dtypes(name)},
    OP_ARITHMETIC(X, )
#undef X
};

/* By the size of an element. */
enum { ELEMENT_BYTES_MAX = 8 };
static const struct names copy_names[ELEMENT_BYTES_MAX + 1] = {
    [1] = NAMES(copy_1), [2] = NAMES(copy_2), [4] = NAMES(copy_4), [8] = NAMES(copy_8)};

static const struct names *names_of(enum op_id op, enum dtype dtype)
{
    return op == OP_COPY ? &copy_names[dtype_size(dtype)] : &op_names[op][dtype];
}

/* An elementwise plan in the kernels' terms: dimension 0 innermost; a unary op has all strides of b 0. */
struct space {
    unsigned rank;
    uint64_t count, size[CUDA_OPS_MAX_RANK];
    uint64_t out[CUDA_OPS_MAX_RANK], a[CUDA_OPS_MAX_RANK], b[CUDA_OPS_MAX_RANK];
};

static struct space space_of(const struct plan_elementwise *p, unsigned n_inputs)
{
    struct space s = {.rank = p->rank, .count = p->count};

    for (unsigned d = 0; d < p->rank; d++) {
        const unsigned from = p->rank - 1 - d;

        s.size[d] = (uint64_t)p->shape[from];
        s.a[d] = (uint64_t)p->strides[0][from];
        s.b[d] = n_inputs > 1 ? (uint64_t)p->strides[1][from] : 0;
        s.out[d] = (uint64_t)p->strides[n_inputs][from];
    }
    return s;
}

struct cuda_ops_divider cuda_ops_divider(uint64_t divisor, bool wide)
{
    const unsigned bits = wide ? 64 : 32;
    struct cuda_ops_divider d = {.divisor = divisor};

    /* Granlund and Montgomery, "Division by invariant integers using multiplication" (1994), figure 4.1: with
     * shift = ⌈log2 divisor⌉, magic = ⌊2^bits · (2^shift − divisor) / divisor⌋ + 1. */
    while (((unsigned __int128)1 << d.shift) < divisor)
        d.shift++;
    d.magic = (uint64_t)(((((unsigned __int128)1 << d.shift) - divisor) << bits) / divisor) + 1;
    return d;
}

static bool one_dimension(const struct space *s)
{
    return s->rank == 1 && (s->out[0] == 1 || s->count == 1) && (s->a[0] <= 1 || s->count == 1) &&
           (s->b[0] <= 1 || s->count == 1);
}

static void set_vector(const struct space *s, uint64_t out, uint64_t a, uint64_t b, size_t size, const char *kernel,
                       struct cuda_launch *ret_launch)
{
    struct cuda_ops_vector p = {.out = out, .a = a, .b = b, .count = s->count};
    const uint64_t tile = (uint64_t)CUDA_OPS_THREADS * CUDA_OPS_VECTOR_PACKS * (CUDA_OPS_PACK_BYTES / size);

    p.a_step = s->a[0] != 0;
    p.b_step = s->b[0] != 0;
    p.head = (uint32_t)((CUDA_OPS_PACK_BYTES - out % CUDA_OPS_PACK_BYTES) % CUDA_OPS_PACK_BYTES / size);
    if (p.head > s->count)
        p.head = (uint32_t)s->count;
    p.a_aligned = (a + p.head * size) % CUDA_OPS_PACK_BYTES == 0;
    p.b_aligned = (b + p.head * size) % CUDA_OPS_PACK_BYTES == 0;
    cuda_ops_set_launch(ret_launch, kernel, "vector", (s->count - p.head + tile - 1) / tile, &p, sizeof(p));
}

/* Whether the count and every operand's furthest offset stay below NARROW_LIMIT. */
static bool is_narrow(const struct space *s)
{
    uint64_t out = 0, a = 0, b = 0;

    if (s->count >= NARROW_LIMIT)
        return false;
    for (unsigned d = 0; d < s->rank; d++) {
        out += (s->size[d] - 1) * s->out[d];
        a += (s->size[d] - 1) * s->a[d];
        b += (s->size[d] - 1) * s->b[d];
    }
    return out < NARROW_LIMIT && a < NARROW_LIMIT && b < NARROW_LIMIT;
}

static void insert_front(uint64_t *values, unsigned rank, uint64_t value)
{
    memmove(&values[1], &values[0], rank * sizeof(values[0]));
    values[0] = value;
}

/* Makes `side` steps of dimension d the innermost dimension; the rest of d stays where it was, now d + 1. */
static void split_dimension(struct space *s, unsigned d, uint64_t side)
{
    const uint64_t out = s->out[d], a = s->a[d], b = s->b[d];

    s->size[d] /= side;
    s->out[d] = out * side;
    s->a[d] = a * side;
    s->b[d] = b * side;
    insert_front(s->size, s->rank, side);
    insert_front(s->out, s->rank, out);
    insert_front(s->a, s->rank, a);
    insert_front(s->b, s->rank, b);
    s->rank++;
}

/* Where an input is contiguous along another dimension than out, walking along out alone would touch one element of a
 * memory sector at a time. Reorders the walk so that a block covers a square of both dimensions. Any order of the
 * dimensions computes the same. */
static void walk_in_squares(struct space *s)
{
    uint64_t side = SQUARE_SIDE_MAX;
    unsigned across = 0;

    for (unsigned d = 1; d < s->rank && !across; d++) {
        if ((s->a[d] == 1 && s->a[0] > 1) || (s->b[d] == 1 && s->b[0] > 1))
            across = d;
    }
    if (!across || s->out[0] != 1 || s->rank + 2 > CUDA_OPS_MAX_RANK)
        return;
    while (side >= SQUARE_SIDE_MIN && (s->size[0] % side != 0 || s->size[across] % side != 0))
        side /= 2;
    if (side < SQUARE_SIDE_MIN)
        return;
    split_dimension(s, across, side);
    split_dimension(s, 1, side);
}

static void set_strided(struct space *s, uint64_t out, uint64_t a, uint64_t b, const struct names *names,
                        struct cuda_launch *ret_launch)
{
    const uint64_t tile = (uint64_t)CUDA_OPS_THREADS * CUDA_OPS_STRIDED_ELEMENTS;
    const bool narrow = is_narrow(s);
    struct cuda_ops_strided p = {.out = out, .a = a, .b = b, .count = s->count};

    walk_in_squares(s);
    p.rank = s->rank;
    for (unsigned d = 0; d < s->rank; d++) {
        p.sizes[d] = cuda_ops_divider(s->size[d], !narrow);
        p.out_strides[d] = s->out[d];
        p.a_strides[d] = s->a[d];
        p.b_strides[d] = s->b[d];
    }
    cuda_ops_set_launch(ret_launch, narrow ? names->strided : names->strided64, "strided", (s->count - 1) / tile + 1,
                        &p, sizeof(p));
}

bool cuda_ops_has_elementwise(enum op_id op, enum dtype dtype)
{
    return names_of(op, dtype)->vector != NULL;
}

int cuda_ops_launch_elementwise(enum op_id op, const struct plan *plan, const uint64_t *addresses, const char *variant,
                                struct cuda_launch *ret_launch, struct error *e)
{
    const unsigned n_inputs = op_get(op)->n_inputs;
    const uint64_t out = addresses[n_inputs], a = addresses[0], b = n_inputs > 1 ? addresses[1] : 0;
    const struct names *names = names_of(op, plan->dtype);
    struct space s = space_of(&plan->elementwise, n_inputs);
    const bool vector = one_dimension(&s);

    if (variant && strcmp(variant, "vector") == 0 && !vector)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "variant \"vector\" needs contiguous tensors (inputs may be scalars); use \"strided\"");
    if (vector && !(variant && strcmp(variant, "strided") == 0))
        set_vector(&s, out, a, b, dtype_size(plan->dtype), names->vector, ret_launch);
    else
        set_strided(&s, out, a, b, names, ret_launch);
    return 0;
}

int cuda_ops_copy(const struct plan_elementwise *plan, size_t element_size, uint64_t source, uint64_t target,
                  struct cuda_launch *ret_launch, struct error *e)
{
    struct space s = space_of(plan, 1);

    if (element_size > ELEMENT_BYTES_MAX || !copy_names[element_size].strided)
        return error_set(e, ERROR_UNSUPPORTED, "elements of %zu bytes cannot be copied on the device", element_size);
    set_strided(&s, target, source, 0, &copy_names[element_size], ret_launch);
    ret_launch->variant = "copy";
    return 0;
}
