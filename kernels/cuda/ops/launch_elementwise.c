/* Launches of the element-wise kernels and of the strided copy. Thread: any. */
#include <string.h>

#include "plan_launch.h"

/* Offsets and counts below this limit are computed in 32 bits. */
#define NARROW_LIMIT ((uint64_t)1 << 31)

enum {
    ROW_BYTES_MIN = 32, /* least row for the rows kernel */
    TILE_EDGE_MIN = 16, /* least extent for the tiles kernel */
    PLAIN_THREADS_UNARY = 128,
    PLAIN_LARGE = 32 << 20, /* from so many bytes of out on, the size of blocks matters */
};

struct names {
    const char *plain, *vector, *rows, *tiles, *strided, *strided64;
};

#define NAMES(name)                                                                                                    \
    {                                                                                                                  \
        "kops_" #name "_plain", "kops_" #name "_vector", "kops_" #name "_rows", "kops_" #name "_tiles",                \
            "kops_" #name "_strided", "kops_" #name "_strided64"                                                       \
    }

#define NAMES_FLOATS(op)                                                                                               \
    [DTYPE_F32] = NAMES(op##_f32), [DTYPE_F64] = NAMES(op##_f64), [DTYPE_F16] = NAMES(op##_f16),                       \
    [DTYPE_BF16] = NAMES(op##_bf16)

/* Signed integers use the kernels of unsigned ones, since sums and products have equal bits. */
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

/* Indexed by the size of an element. */
enum { ELEMENT_BYTES_MAX = 8 };
static const struct names copy_names[ELEMENT_BYTES_MAX + 1] = {
    [1] = NAMES(copy_1), [2] = NAMES(copy_2), [4] = NAMES(copy_4), [8] = NAMES(copy_8)};

static const struct names *names_of(enum op_id op, enum dtype dtype)
{
    return op == OP_COPY ? &copy_names[dtype_size(dtype)] : &op_names[op][dtype];
}

/* An element-wise plan in the kernels' terms: dimension 0 is the innermost; for unary ops all strides of b are 0. */
struct space {
    unsigned n_inputs, rank;
    uint64_t count, size[CUDA_OPS_MAX_RANK];
    uint64_t out[CUDA_OPS_MAX_RANK], a[CUDA_OPS_MAX_RANK], b[CUDA_OPS_MAX_RANK];
};

static struct space space_of(const struct plan_elementwise *p, unsigned n_inputs)
{
    struct space s = {.n_inputs = n_inputs, .rank = p->rank, .count = p->count};

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

static bool is_plain(uint64_t address, uint64_t step)
{
    return address % CUDA_OPS_PACK_BYTES == 0 && step == 1;
}

/* On devices of compute capability 9.0, large tensors are fastest with large blocks for two inputs, and small blocks
 * for one (measured in kernels/cuda/lab). */
static unsigned plain_threads(const struct space *s, size_t size, const struct cuda_ops_device *device)
{
    if (!device || device->level < CUDA_OPS_SM90A || size == 1 || s->count < PLAIN_LARGE / size)
        return CUDA_OPS_THREADS;
    return s->n_inputs > 1 ? CUDA_OPS_PLAIN_THREADS : PLAIN_THREADS_UNARY;
}

static void set_vector(const struct space *s, uint64_t out, uint64_t a, uint64_t b, size_t size,
                       const struct names *names, const struct cuda_ops_device *device, struct cuda_launch *ret_launch)
{
    struct cuda_ops_vector p = {.out = out, .a = a, .b = b, .count = s->count};
    const bool plain = is_plain(out, 1) && is_plain(a, s->a[0]) && (s->n_inputs < 2 || is_plain(b, s->b[0]));
    const unsigned threads = plain ? plain_threads(s, size, device) : CUDA_OPS_THREADS;
    const uint64_t tile = (uint64_t)threads * CUDA_OPS_VECTOR_PACKS * (CUDA_OPS_PACK_BYTES / size);

    p.a_step = s->a[0] != 0;
    p.b_step = s->b[0] != 0;
    p.head = (uint32_t)((CUDA_OPS_PACK_BYTES - out % CUDA_OPS_PACK_BYTES) % CUDA_OPS_PACK_BYTES / size);
    if (p.head > s->count)
        p.head = (uint32_t)s->count;
    cuda_ops_set_launch(ret_launch, plain ? names->plain : names->vector, "vector",
                        (s->count - p.head + tile - 1) / tile, &p, sizeof(p));
    ret_launch->block[0] = threads;
}

/* Whether the count and all offsets are below NARROW_LIMIT. */
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

/* ---- rows ---- */

/* Counts the threads for a row: enough for the most aligned pieces that a row of out may touch. */
static uint64_t threads_of_row(const struct space *s, uint64_t out, size_t size)
{
    const uint64_t bytes = CUDA_OPS_PACK_BYTES *
                           (s->n_inputs > 1 && size == ELEMENT_BYTES_MAX ? CUDA_OPS_ROW_PIECES_8 : CUDA_OPS_ROW_PIECES);
    uint64_t before = out % CUDA_OPS_PACK_BYTES; /* bytes of a row's first piece before the row */

    for (unsigned d = 1; d < s->rank; d++)
        if (s->out[d] * size % CUDA_OPS_PACK_BYTES != 0)
            before = CUDA_OPS_PACK_BYTES - size; /* the worst case, since rows differ */
    return (before + s->size[0] * size + bytes - 1) / bytes;
}

static bool has_rows(const struct space *s, uint64_t out, size_t size)
{
    return s->out[0] == 1 && s->a[0] <= 1 && s->b[0] <= 1 &&
           threads_of_row(s, out, size) <= (NARROW_LIMIT - 1) / (s->count / s->size[0]);
}

/* ---- tiles ---- */

static void exchange(uint64_t *values, unsigned i, unsigned j)
{
    const uint64_t x = values[i];

    values[i] = values[j];
    values[j] = x;
}

/* Whether each input is contiguous or repeated along out's innermost dimension, or contiguous along dimension d. */
static bool fits_tiles(const struct space *s, unsigned d)
{
    return (s->a[0] <= 1 || s->a[d] == 1) && (s->b[0] <= 1 || s->b[d] == 1) && (s->a[0] > 1 || s->b[0] > 1);
}

/* Whether tiles help: an input is contiguous along another dimension than out, so that reading it in out's order would
 * use one element of each memory sector. Makes that dimension number 1; the order of outer dimensions is free. */
static bool has_tiles(struct space *s)
{
    unsigned d = 1;

    while (d < s->rank && !fits_tiles(s, d))
        d++;
    if (d >= s->rank || s->out[0] != 1 || s->size[0] < TILE_EDGE_MIN || s->size[d] < TILE_EDGE_MIN)
        return false;
    exchange(s->size, 1, d);
    exchange(s->out, 1, d);
    exchange(s->a, 1, d);
    exchange(s->b, 1, d);
    /* The smallest tile has TILE_EDGE_MIN² elements. */
    return s->count / (TILE_EDGE_MIN * TILE_EDGE_MIN) < NARROW_LIMIT;
}

/* ---- the choice ---- */

static void set_space(const struct space *s, uint64_t out, uint64_t a, uint64_t b, bool narrow,
                      struct cuda_ops_strided *ret)
{
    *ret = (struct cuda_ops_strided){.out = out, .a = a, .b = b, .count = s->count, .rank = s->rank};
    for (unsigned d = 0; d < s->rank; d++) {
        ret->sizes[d] = cuda_ops_divider(s->size[d], !narrow);
        ret->out_strides[d] = s->out[d];
        ret->a_strides[d] = s->a[d];
        ret->b_strides[d] = s->b[d];
    }
}

static void set_rows(const struct space *s, uint64_t out, uint64_t a, uint64_t b, size_t size, const char *kernel,
                     struct cuda_launch *ret_launch)
{
    const uint64_t threads = threads_of_row(s, out, size);
    struct cuda_ops_strided p;

    set_space(s, out, a, b, true, &p);
    p.a_end = a + size;
    p.b_end = b + size;
    for (unsigned d = 0; d < s->rank; d++) {
        p.a_end += (s->size[d] - 1) * s->a[d] * size;
        p.b_end += (s->size[d] - 1) * s->b[d] * size;
    }
    p.work = threads * (s->count / s->size[0]);
    p.pieces = cuda_ops_divider(threads, false);
    cuda_ops_set_launch(ret_launch, kernel, "rows", (p.work - 1) / CUDA_OPS_ROW_THREADS + 1, &p, sizeof(p));
    ret_launch->block[0] = CUDA_OPS_ROW_THREADS;
}

static void set_tiles(const struct space *s, uint64_t out, uint64_t a, uint64_t b, size_t size, const char *kernel,
                      struct cuda_launch *ret_launch)
{
    const uint64_t side = size == ELEMENT_BYTES_MAX ? CUDA_OPS_TILE_SIDE_8 : CUDA_OPS_TILE_SIDE;
    const uint64_t across = (s->size[0] - 1) / side + 1, down = (s->size[1] - 1) / side + 1;
    struct cuda_ops_strided p;

    set_space(s, out, a, b, true, &p);
    p.turned = (s->a[0] > 1 ? 1U : 0) | (s->b[0] > 1 ? 2U : 0);
    p.work = across * down * (s->count / s->size[0] / s->size[1]);
    p.pieces = cuda_ops_divider(across, false);
    p.pieces_down = cuda_ops_divider(down, false);
    cuda_ops_set_launch(ret_launch, kernel, "tiles", p.work, &p, sizeof(p));
}

static void set_strided(const struct space *s, uint64_t out, uint64_t a, uint64_t b, const struct names *names,
                        struct cuda_launch *ret_launch)
{
    const uint64_t tile = (uint64_t)CUDA_OPS_THREADS * CUDA_OPS_STRIDED_ELEMENTS;
    const bool narrow = is_narrow(s);
    struct cuda_ops_strided p;

    set_space(s, out, a, b, narrow, &p);
    cuda_ops_set_launch(ret_launch, narrow ? names->strided : names->strided64, "strided", (s->count - 1) / tile + 1,
                        &p, sizeof(p));
}

/* Chooses the kernel. `variant`: NULL, or the only choice. `device` may be NULL. False: the variant cannot run this. */
static bool choose(struct space *s, uint64_t out, uint64_t a, uint64_t b, size_t size, const struct names *names,
                   const char *variant, const struct cuda_ops_device *device, struct cuda_launch *ret_launch)
{
    const bool any = !variant;

    if ((any || strcmp(variant, "vector") == 0) && one_dimension(s))
        set_vector(s, out, a, b, size, names, device, ret_launch);
    else if (((any && s->size[0] * size >= ROW_BYTES_MIN) || (!any && strcmp(variant, "rows") == 0)) &&
             has_rows(s, out, size))
        set_rows(s, out, a, b, size, names->rows, ret_launch);
    else if ((any || strcmp(variant, "tiles") == 0) && has_tiles(s))
        set_tiles(s, out, a, b, size, names->tiles, ret_launch);
    else if (any || strcmp(variant, "strided") == 0)
        set_strided(s, out, a, b, names, ret_launch);
    else
        return false;
    return true;
}

bool cuda_ops_has_elementwise(enum op_id op, enum dtype dtype)
{
    return names_of(op, dtype)->vector != NULL;
}

int cuda_ops_launch_elementwise(enum op_id op, const struct plan *plan, const uint64_t *addresses, const char *variant,
                                const struct cuda_ops_device *device, struct cuda_launch *ret_launch, struct error *e)
{
    const unsigned n_inputs = op_get(op)->n_inputs;
    const uint64_t out = addresses[n_inputs], a = addresses[0], b = n_inputs > 1 ? addresses[1] : 0;
    struct space s = space_of(&plan->elementwise, n_inputs);

    if (choose(&s, out, a, b, dtype_size(plan->dtype), names_of(op, plan->dtype), variant, device, ret_launch))
        return 0;
    return error_set(e, ERROR_INVALID_ARGUMENT,
                     "variant \"%s\" does not take these strides: \"vector\" needs contiguous tensors (inputs may be "
                     "scalars), \"rows\" contiguous rows (of inputs, or repeated elements), \"tiles\" an input that is "
                     "contiguous along another dimension than out; use \"strided\"",
                     variant);
}

int cuda_ops_copy(const struct plan_elementwise *plan, size_t element_size, uint64_t source, uint64_t target,
                  struct cuda_launch *ret_launch, struct error *e)
{
    struct space s = space_of(plan, 1);

    if (element_size > ELEMENT_BYTES_MAX || !copy_names[element_size].strided)
        return error_set(e, ERROR_UNSUPPORTED, "elements of %zu bytes cannot be copied on the device", element_size);
    choose(&s, target, source, 0, element_size, &copy_names[element_size], NULL, NULL, ret_launch);
    ret_launch->variant = "copy";
    return 0;
}

void cuda_ops_gelu(const struct plan_elementwise *plan, enum dtype dtype, uint64_t out, struct cuda_launch *ret_launch)
{
    static const struct names gelu_names[] = {[false] = NAMES(gelu_f32), [true] = NAMES(gelu_f64)};
    struct space s = space_of(plan, 1);

    choose(&s, out, out, 0, dtype_size(dtype), &gelu_names[dtype == DTYPE_F64], NULL, NULL, ret_launch);
    ret_launch->variant = "gelu";
}
