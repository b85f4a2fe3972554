/* The kernels of kernels/cuda/ops, as plain loops over what params.h and params_scaled.h say: from a kernel's name, for
 * what it touches and what it computes. The rest of a name says how a real kernel goes about it: accepted as it is. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/ops/params_scaled.h"
#include "kernels/host/convert.h"
#include "standin.h"

enum kernel_op {
    KERNEL_ADD,
    KERNEL_ADD_SQUARE,
    KERNEL_SQUARE,
    KERNEL_SUB_SQUARE,
    KERNEL_COPY,
    KERNEL_GELU,
    KERNEL_GEMM
};
enum kernel_layout {
    LAYOUT_VECTOR,
    LAYOUT_STRIDED,
    LAYOUT_GEMM,
    LAYOUT_MAPPED,
    LAYOUT_SCALED,
    LAYOUT_GATE,
    LAYOUT_MOVE,
    LAYOUT_REPACK
};

enum element { ELEMENT_F32, ELEMENT_F64, ELEMENT_F16, ELEMENT_BF16, ELEMENT_E4M3, ELEMENT_E5M2, ELEMENT_RAW };

struct kernel {
    struct kernel *next;
    enum kernel_op op;
    unsigned inputs;
    enum kernel_layout layout;
    enum element element;
    unsigned size;   /* of an element */
    unsigned pieces; /* of LAYOUT_REPACK; 0: a copy */
    bool plain;      /* of LAYOUT_VECTOR: operands begin on 16-byte boundaries and have steps of 1 */
    char symbol[96];
};

/* ---- names ---- */

_Static_assert(sizeof(struct cuda_ops_gemm_scaled) <= MAX_PARAMS && sizeof(struct cuda_ops_strided) <= MAX_PARAMS,
               "an operation has room for every kernel's parameters");

static bool parse_element(const char *name, struct kernel *k)
{
    static const struct {
        const char *name;
        enum element element;
        unsigned size;
        bool raw;
    } elements[] = {{"f32", ELEMENT_F32, 4, false}, {"tf32", ELEMENT_F32, 4, false},  {"f64", ELEMENT_F64, 8, false},
                    {"f16", ELEMENT_F16, 2, false}, {"bf16", ELEMENT_BF16, 2, false}, {"u8", ELEMENT_RAW, 1, false},
                    {"u16", ELEMENT_RAW, 2, false}, {"u32", ELEMENT_RAW, 4, false},   {"u64", ELEMENT_RAW, 8, false},
                    {"1", ELEMENT_RAW, 1, true},    {"2", ELEMENT_RAW, 2, true},      {"4", ELEMENT_RAW, 4, true},
                    {"8", ELEMENT_RAW, 8, true}};

    for (size_t i = 0; i < sizeof(elements) / sizeof(*elements); i++)
        if (strcmp(elements[i].name, name) == 0 && elements[i].raw == (k->op == KERNEL_COPY)) {
            k->element = elements[i].element;
            k->size = elements[i].size;
            return true;
        }
    return false;
}

/* "<op>_<element>_<layout>" of this op. */
static bool parse_op(const char *symbol, const char *op, enum kernel_op id, unsigned inputs, struct kernel *k)
{
    static const char *const layouts[] = {"strided", "rows", "tiles"};
    const size_t length = strlen(op);
    char element[16], layout[64];

    k->op = id;
    k->inputs = inputs;
    if (strncmp(symbol, op, length) != 0 || sscanf(symbol + length, "_%15[a-z0-9]_%63s", element, layout) != 2 ||
        !parse_element(element, k))
        return false;
    if (id == KERNEL_GEMM) {
        k->layout = strncmp(layout, "hopper_", 7) == 0 ? LAYOUT_MAPPED : LAYOUT_GEMM;
        return k->layout == LAYOUT_MAPPED || strncmp(layout, "tiled_", 6) == 0 || strncmp(layout, "skinny_", 7) == 0 ||
               strncmp(layout, "small_", 6) == 0;
    }
    k->plain = strcmp(layout, "plain") == 0;
    k->layout = k->plain || strcmp(layout, "vector") == 0 ? LAYOUT_VECTOR : LAYOUT_STRIDED;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++)
        if (strncmp(layout, layouts[i], strlen(layouts[i])) == 0)
            return true;
    return k->layout == LAYOUT_VECTOR;
}

static bool parse_repack(const char *symbol, struct kernel *k)
{
    static const struct {
        const char *name;
        unsigned size, pieces;
    } kinds[] = {{"kops_repack_2", 2, 0},
                 {"kops_repack_4", 4, 0},
                 {"kops_repack_8", 8, 0},
                 {"kops_repack_bf16x2", 4, 2},
                 {"kops_repack_bf16x3", 4, 3}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (strcmp(kinds[i].name, symbol) == 0) {
            k->layout = LAYOUT_REPACK;
            k->size = kinds[i].size;
            k->pieces = kinds[i].pieces;
            return true;
        }
    return false;
}

static bool parse_symbol(const char *symbol, struct kernel *k)
{
    static const struct {
        const char *name;
        unsigned inputs;
    } ops[] = {[KERNEL_ADD] = {"add", 2},       [KERNEL_ADD_SQUARE] = {"add_square", 2},
               [KERNEL_SQUARE] = {"square", 1}, [KERNEL_SUB_SQUARE] = {"sub_square", 2},
               [KERNEL_COPY] = {"copy", 1},     [KERNEL_GELU] = {"gelu", 1},
               [KERNEL_GEMM] = {"gemm", 2}};

    if (strlen(symbol) >= sizeof(k->symbol) || strncmp(symbol, "kops_", 5) != 0)
        return false;
    snprintf(k->symbol, sizeof(k->symbol), "%s", symbol);
    symbol += 5;
    if (strcmp(symbol, "gate") == 0) {
        k->layout = LAYOUT_GATE;
        return true;
    }
    if (strcmp(symbol, "move") == 0) {
        k->layout = LAYOUT_MOVE;
        return true;
    }
    if (parse_repack(k->symbol, k))
        return true;
    if (strncmp(symbol, "scaled_gemm_f8_tiled_", 21) == 0) {
        k->layout = LAYOUT_SCALED;
        return true;
    }
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
        if (parse_op(symbol, ops[i].name, (enum kernel_op)i, ops[i].inputs, k))
            return true;
    return parse_op(symbol, "linear", KERNEL_GEMM, 2, k);
}

const struct kernel *kernel_find(const char *symbol)
{
    static struct kernel *known;
    struct kernel parsed = {0}, *k;

    for (k = known; k; k = k->next)
        if (strcmp(k->symbol, symbol) == 0)
            return k;
    if (!parse_symbol(symbol, &parsed))
        return NULL;
    k = malloc(sizeof(*k));
    if (!k)
        return NULL;
    *k = parsed;
    k->next = known;
    known = k;
    return k;
}

size_t kernel_params_size(const struct kernel *kernel)
{
    static const size_t sizes[] = {
        [LAYOUT_VECTOR] = sizeof(struct cuda_ops_vector),      [LAYOUT_STRIDED] = sizeof(struct cuda_ops_strided),
        [LAYOUT_GEMM] = sizeof(struct cuda_ops_gemm),          [LAYOUT_MAPPED] = sizeof(struct cuda_ops_gemm_mapped),
        [LAYOUT_SCALED] = sizeof(struct cuda_ops_gemm_scaled), [LAYOUT_GATE] = sizeof(struct cuda_ops_gate),
        [LAYOUT_MOVE] = sizeof(struct cuda_ops_move),          [LAYOUT_REPACK] = sizeof(struct cuda_ops_repack)};

    return sizes[kernel->layout];
}

/* ---- what is read and written ---- */

/* Adds the range from `address` over the furthest of `rank` indices; false when it leaves the address space. */
static bool op_use_strided(struct op *op, unsigned size, uint64_t address, unsigned rank, const uint64_t *shape,
                           const uint64_t *strides, bool write)
{
    unsigned __int128 last = 0;

    if (address % size)
        return false;
    for (unsigned d = 0; d < rank; d++) {
        last += (unsigned __int128)(shape[d] - 1) * strides[d];
        if (last > UINT64_MAX / 16)
            return false;
    }
    op_use(op, address, ((uint64_t)last + 1) * size, write);
    return true;
}

static bool use_strided(struct op *op, const struct kernel *k, uint64_t address, unsigned rank, const uint64_t *shape,
                        const uint64_t *strides, bool write)
{
    return op_use_strided(op, k->size, address, rank, shape, strides, write);
}

/* The hints must be true: a real kernel would make misaligned accesses. */
static bool vector_hints_hold(const struct kernel *k, const struct cuda_ops_vector *p)
{
    const unsigned size = k->size;

    if (k->plain && (p->head || (p->out | p->a | p->b) % 16 != 0 || !p->a_step || (k->inputs > 1 && !p->b_step)))
        return false;
    if (p->head >= p->count)
        return true;
    return (p->out + (uint64_t)p->head * size) % 16 == 0;
}

static bool vector_uses(const struct kernel *k, const struct cuda_ops_vector *p, struct op *op)
{
    const uint64_t one = 1, a_step = p->a_step, b_step = p->b_step;

    if (!p->count)
        return true;
    if (p->a_step > 1 || p->b_step > 1 || !vector_hints_hold(k, p))
        return false;
    return use_strided(op, k, p->out, 1, &p->count, &one, true) &&
           use_strided(op, k, p->a, 1, &p->count, &a_step, false) &&
           (k->inputs < 2 || use_strided(op, k, p->b, 1, &p->count, &b_step, false));
}

static bool strided_uses(const struct kernel *k, const struct cuda_ops_strided *p, struct op *op)
{
    uint64_t shape[CUDA_OPS_MAX_RANK], count_of = 1;

    if (!p->count)
        return true;
    if (p->rank < 1 || p->rank > CUDA_OPS_MAX_RANK)
        return false;
    for (unsigned d = 0; d < p->rank; d++) {
        shape[d] = p->sizes[d].divisor;
        if (!shape[d] || __builtin_mul_overflow(count_of, shape[d], &count_of))
            return false;
    }
    return count_of == p->count && use_strided(op, k, p->out, p->rank, shape, p->out_strides, true) &&
           use_strided(op, k, p->a, p->rank, shape, p->a_strides, false) &&
           (k->inputs < 2 || use_strided(op, k, p->b, p->rank, shape, p->b_strides, false));
}

/* The elements of a gemm's out, which may be wider than those of its operands. */
static struct kernel kernel_of_out(const struct kernel *k, const struct cuda_ops_gemm *p)
{
    struct kernel o = *k;

    if (p->out_wide && k->size == 2) {
        o.element = ELEMENT_F32;
        o.size = sizeof(float);
    }
    return o;
}

/* Adds a matrix of the product's batch, of elements of `size` bytes. */
static bool gemm_matrix_uses(unsigned size, const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *x,
                             uint64_t rows, uint64_t columns, bool write, struct op *op)
{
    uint64_t shape[CUDA_OPS_MAX_RANK + 2] = {rows, columns}, strides[CUDA_OPS_MAX_RANK + 2] = {x->row, x->column};

    if (!rows || !columns)
        return true;
    for (unsigned d = 0; d < p->batch_rank; d++) {
        shape[2 + d] = p->batch_shape[d];
        strides[2 + d] = x->batch[d];
    }
    return op_use_strided(op, size, x->address, 2 + p->batch_rank, shape, strides, write);
}

static bool gemm_batches_agree(const struct cuda_ops_gemm *p)
{
    uint64_t batches = 1;

    if (p->batch_rank > CUDA_OPS_MAX_RANK)
        return false;
    for (unsigned d = 0; d < p->batch_rank; d++)
        if (!p->batch_shape[d] || __builtin_mul_overflow(batches, p->batch_shape[d], &batches))
            return false;
    return batches == p->batch_count;
}

static bool gemm_uses(const struct kernel *k, const struct cuda_ops_gemm *p, struct op *op)
{
    const struct kernel o = kernel_of_out(k, p);

    if (!gemm_batches_agree(p))
        return false;
    return !p->m || !p->n ||
           (gemm_matrix_uses(o.size, p, &p->out, p->m, p->n, true, op) &&
            gemm_matrix_uses(k->size, p, &p->a, p->m, p->k, false, op) &&
            gemm_matrix_uses(k->size, p, &p->b, p->k, p->n, false, op) &&
            (!p->bias.address || gemm_matrix_uses(k->size, p, &p->bias, p->m, p->n, false, op)));
}

static bool mapped_uses(const struct kernel *k, const struct cuda_ops_gemm_mapped *p, struct op *op)
{
    struct cuda_ops_gemm gemm;

    return maps_read(p, k->symbol, &gemm) && gemm_uses(k, &gemm, op);
}

_Static_assert((int)MAX_USES > 2 * (int)CUDA_OPS_MOVE_PIECES, "an operation has room for every piece, and the stamps");

static bool move_uses(const struct cuda_ops_move *p, struct op *op)
{
    uint32_t tiles = 0;

    if (!p->count || p->count > CUDA_OPS_MOVE_PIECES)
        return false;
    for (unsigned i = 0; i < p->count; i++) {
        const struct cuda_ops_move_piece *piece = &p->pieces[i];
        const uint64_t bytes = (uint64_t)piece->units * piece->width;

        if (!piece->units || piece->width > 16 || __builtin_popcount(piece->width) != 1 ||
            (piece->from | piece->to) % piece->width)
            return false;
        tiles += (piece->units + CUDA_OPS_THREADS - 1) / CUDA_OPS_THREADS;
        if (piece->tiles_end != tiles)
            return false;
        op_use(op, piece->from, bytes, false);
        op_use(op, piece->to, bytes, true);
    }
    return p->tiles == tiles;
}

static bool stamps_use(const struct cuda_ops_stamps *s, struct op *op)
{
    if (!s->times)
        return true;
    op_use(op, s->times, 2 * sizeof(uint64_t), true);
    return s->times % sizeof(uint64_t) == 0 && s->count && s->count % CUDA_OPS_COUNT_BYTES == 0 && s->counting;
}

static unsigned target_size(unsigned size, unsigned pieces)
{
    return pieces ? 2 : size;
}

/* The part's rows and columns, and its batches, as one shape with the strides of either side. */
static unsigned space_of(const struct cuda_ops_repack_part *p, bool target, uint64_t *shape, uint64_t *strides)
{
    shape[0] = target ? p->to_rows : p->rows;
    shape[1] = target ? p->to_columns : p->columns;
    strides[0] = target ? p->to_row : p->row;
    strides[1] = target ? p->to_column : p->column;
    for (unsigned d = 0; d < p->batch_rank; d++) {
        shape[2 + d] = p->batch_shape[d];
        strides[2 + d] = target ? p->to_batch[d] : p->batch[d];
    }
    return 2 + p->batch_rank;
}

/* Every element has its chunk; with pieces, whole chunks lie on boundaries. */
static bool hints_hold(const struct cuda_ops_repack_part *p, unsigned to_size, unsigned pieces)
{
    const uint64_t width = 16 / to_size;
    uint64_t chunks = (p->to_columns + width - 1) / width, count = p->chunks.divisor * p->height.divisor;
    uint64_t bits = p->to | (p->to_rows > 1 ? p->to_row * to_size : 0);

    for (unsigned d = 0; d < p->batch_rank; d++) {
        bits |= p->to_batch[d] * to_size;
        count *= p->batch_shape[d];
    }
    if (pieces && (bits % 16 || p->to_columns % width || p->to_column != 1))
        return false;
    if (p->to_column == 1 && bits % 16)
        chunks++;
    return p->chunks.divisor >= chunks && p->height.divisor == p->to_rows && p->count == count;
}

static bool part_uses(unsigned size, unsigned pieces, const struct cuda_ops_repack_part *p, struct op *op)
{
    const unsigned to_size = target_size(size, pieces);
    uint64_t shape[CUDA_OPS_REPACK_BATCHES + 2], strides[CUDA_OPS_REPACK_BATCHES + 2];
    unsigned rank;

    if (!p->count)
        return true;
    if (p->batch_rank > CUDA_OPS_REPACK_BATCHES || !p->rows || !p->columns || p->rows > p->to_rows ||
        p->columns > p->to_columns || !hints_hold(p, to_size, pieces))
        return false;
    rank = space_of(p, false, shape, strides);
    if (!op_use_strided(op, size, p->from, rank, shape, strides, false))
        return false;
    rank = space_of(p, true, shape, strides);
    for (unsigned i = 0; i < (pieces ? pieces : 1); i++)
        if ((pieces && p->pieces[i] % 8) ||
            !op_use_strided(op, to_size, p->to + p->pieces[i] * to_size, rank, shape, strides, true))
            return false;
    return true;
}

static bool repack_uses(unsigned size, unsigned pieces, const struct cuda_ops_repack *p, struct op *op)
{
    return part_uses(size, pieces, &p->parts[0], op) && part_uses(size, pieces, &p->parts[1], op);
}

static unsigned out_size(const struct cuda_ops_gemm_scaled *p)
{
    return p->out_type == CUDA_OPS_OUT_F32 ? 4 : 2;
}

static bool scaled_uses(const struct cuda_ops_gemm_scaled *p, struct op *op)
{
    const struct cuda_ops_gemm *g = &p->gemm;

    if (p->a_format > CUDA_OPS_E5M2 || p->b_format > CUDA_OPS_E5M2 || p->out_type > CUDA_OPS_OUT_BF16 ||
        g->alpha != 1 || g->beta != 0 || g->bias.address || g->activation || g->out_wide || !gemm_batches_agree(g))
        return false;
    return !g->m || !g->n ||
           (gemm_matrix_uses(out_size(p), g, &g->out, g->m, g->n, true, op) &&
            gemm_matrix_uses(1, g, &g->a, g->m, g->k, false, op) &&
            gemm_matrix_uses(1, g, &g->b, g->k, g->n, false, op) &&
            gemm_matrix_uses(sizeof(float), g, &p->scale_a, g->m, g->n, false, op) &&
            gemm_matrix_uses(sizeof(float), g, &p->scale_b, g->m, g->n, false, op));
}

bool kernel_uses(const struct kernel *kernel, const void *params, struct op *op)
{
    if (!stamps_use(params, op))
        return false;
    switch (kernel->layout) {
    case LAYOUT_VECTOR:
        return vector_uses(kernel, params, op);
    case LAYOUT_STRIDED:
        return strided_uses(kernel, params, op);
    case LAYOUT_REPACK:
        return repack_uses(kernel->size, kernel->pieces, params, op);
    case LAYOUT_MAPPED:
        return mapped_uses(kernel, params, op);
    case LAYOUT_SCALED:
        return scaled_uses(params, op);
    case LAYOUT_MOVE:
        return move_uses(params, op);
    case LAYOUT_GATE:
        op_use(op, ((const struct cuda_ops_gate *)params)->go, sizeof(uint64_t), false);
        return true;
    default:
        return gemm_uses(kernel, params, op);
    }
}

/* ---- what is computed ---- */

static double load(enum element e, uint64_t address)
{
    const void *p = (const void *)(uintptr_t)address;

    switch (e) {
    case ELEMENT_F64:
        return *(const double *)p;
    case ELEMENT_F16:
        return (double)f16_to_f32(*(const uint16_t *)p);
    case ELEMENT_BF16:
        return (double)bf16_to_f32(*(const uint16_t *)p);
    case ELEMENT_E4M3:
        return (double)e4m3_to_f32(*(const uint8_t *)p);
    case ELEMENT_E5M2:
        return (double)e5m2_to_f32(*(const uint8_t *)p);
    default:
        return (double)*(const float *)p;
    }
}

static void store(enum element e, uint64_t address, double value)
{
    void *p = (void *)(uintptr_t)address;

    if (e == ELEMENT_F64)
        *(double *)p = value;
    else if (e == ELEMENT_F32)
        *(float *)p = (float)value;
    else
        *(uint16_t *)p = e == ELEMENT_F16 ? f32_to_f16((float)value) : f32_to_bf16((float)value);
}

/* As the kernels do with a sum and its bias. */
static double finish(double x, uint32_t activation)
{
    switch (activation) {
    case CUDA_OPS_RELU:
        return x < 0 ? 0 : x;
    case CUDA_OPS_GELU:
        return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case CUDA_OPS_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    default:
        return x;
    }
}

#define COMPUTE(T, op, a, b)                                                                                           \
    ((op) == KERNEL_ADD          ? (T)((a) + (b))                                                                      \
     : (op) == KERNEL_GELU       ? (T)finish((double)(a), CUDA_OPS_GELU)                                               \
     : (op) == KERNEL_ADD_SQUARE ? (T)((T)((a) + (b)) * (T)((a) + (b)))                                                \
     : (op) == KERNEL_SUB_SQUARE ? (T)((T)((a) - (b)) * (T)((a) - (b)))                                                \
     : (op) == KERNEL_SQUARE     ? (T)((a) * (a))                                                                      \
                                 : (abort(), (T)0)) /* an op that is not here */

static uint64_t load_bits(const struct kernel *k, uint64_t address)
{
    uint64_t bits = 0;

    memcpy(&bits, (const void *)(uintptr_t)address, k->size);
    return bits;
}

static void element_run(const struct kernel *k, uint64_t out, uint64_t a, uint64_t b)
{
    if (k->inputs < 2)
        b = a;
    if (k->op == KERNEL_COPY) {
        memmove((void *)(uintptr_t)out, (const void *)(uintptr_t)a, k->size);
    } else if (k->element == ELEMENT_RAW) {
        const uint64_t x = load_bits(k, a), y = load_bits(k, b), z = COMPUTE(uint64_t, k->op, x, y);

        memcpy((void *)(uintptr_t)out, &z, k->size);
    } else if (k->element == ELEMENT_F64) {
        const double x = load(k->element, a), y = load(k->element, b);

        store(k->element, out, COMPUTE(double, k->op, x, y));
    } else {
        const float x = (float)load(k->element, a), y = (float)load(k->element, b);

        store(k->element, out, (double)COMPUTE(float, k->op, x, y));
    }
}

static void vector_run(const struct kernel *k, const struct cuda_ops_vector *p)
{
    for (uint64_t i = 0; i < p->count; i++)
        element_run(k, p->out + i * k->size, p->a + i * p->a_step * k->size, p->b + i * p->b_step * k->size);
}

static void strided_run(const struct kernel *k, const struct cuda_ops_strided *p)
{
    uint64_t index[CUDA_OPS_MAX_RANK] = {0}, out = 0, a = 0, b = 0;

    for (uint64_t n = 0; n < p->count; n++) {
        element_run(k, p->out + out * k->size, p->a + a * k->size, p->b + b * k->size);
        for (unsigned d = 0; d < p->rank; d++) {
            out += p->out_strides[d];
            a += p->a_strides[d];
            b += p->b_strides[d];
            if (++index[d] < p->sizes[d].divisor)
                break;
            out -= p->out_strides[d] * index[d];
            a -= p->a_strides[d] * index[d];
            b -= p->b_strides[d] * index[d];
            index[d] = 0;
        }
    }
}

static uint64_t gemm_batch_address(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *x, uint64_t batch,
                                   unsigned size)
{
    uint64_t offset = 0;

    for (unsigned d = 0; d < p->batch_rank; d++) {
        offset += batch % p->batch_shape[d] * x->batch[d];
        batch /= p->batch_shape[d];
    }
    return x->address + offset * size;
}

/* A product, and its scales where it has them. */
struct product {
    const struct cuda_ops_gemm *gemm;
    const struct cuda_ops_matrix *scale_a, *scale_b; /* f32; NULL: none */
    enum element a, b, out;
    unsigned size, out_size;
};

static uint64_t at(const struct cuda_ops_matrix *x, uint64_t base, uint64_t i, uint64_t j, unsigned size)
{
    return base + (i * x->row + j * x->column) * size;
}

/* One matrix product: T accumulates. b is copied row by row first, so that the inner loop runs over neighbours; `sums`
 * has room for k · n + n of them. */
#define PRODUCT(T)                                                                                                     \
    do {                                                                                                               \
        T *copy = sums, *row = copy + g->k * g->n;                                                                     \
        for (uint64_t l = 0; l < g->k; l++)                                                                            \
            for (uint64_t j = 0; j < g->n; j++)                                                                        \
                copy[l * g->n + j] = (T)load(p->b, at(&g->b, b, l, j, p->size));                                       \
        for (uint64_t i = 0; i < g->m; i++) {                                                                          \
            memset(row, 0, g->n * sizeof(T));                                                                          \
            for (uint64_t l = 0; l < g->k; l++) {                                                                      \
                const T x = (T)load(p->a, at(&g->a, a, i, l, p->size));                                                \
                for (uint64_t j = 0; j < g->n; j++)                                                                    \
                    row[j] += x * copy[l * g->n + j];                                                                  \
            }                                                                                                          \
            for (uint64_t j = 0; j < g->n; j++) {                                                                      \
                const uint64_t to = at(&g->out, out, i, j, p->out_size);                                               \
                T value = (T)g->alpha * row[j];                                                                        \
                if (g->beta != 0)                                                                                      \
                    value += (T)g->beta * (T)load(p->out, to);                                                         \
                if (bias)                                                                                              \
                    value += (T)load(p->a, at(&g->bias, bias, i, j, p->size));                                         \
                if (scale_a)                                                                                           \
                    value = value * (T)load(ELEMENT_F32, at(p->scale_a, scale_a, i, j, sizeof(float))) *               \
                            (T)load(ELEMENT_F32, at(p->scale_b, scale_b, i, j, sizeof(float)));                        \
                store(p->out, to, (double)(T)finish((double)value, g->activation));                                    \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

static void product_run(const struct product *p)
{
    const struct cuda_ops_gemm *g = p->gemm;
    void *sums = malloc((g->k + 1) * g->n * sizeof(double) + 1);

    if (!sums)
        fprintf(stderr, "cuda_standin: no memory for a gemm of %llu × %llu\n", (unsigned long long)g->k,
                (unsigned long long)g->n);
    for (uint64_t c = 0; sums && c < g->batch_count; c++) {
        const uint64_t a = gemm_batch_address(g, &g->a, c, p->size), b = gemm_batch_address(g, &g->b, c, p->size),
                       out = gemm_batch_address(g, &g->out, c, p->out_size),
                       bias = g->bias.address ? gemm_batch_address(g, &g->bias, c, p->size) : 0,
                       scale_a = p->scale_a ? gemm_batch_address(g, p->scale_a, c, sizeof(float)) : 0,
                       scale_b = p->scale_b ? gemm_batch_address(g, p->scale_b, c, sizeof(float)) : 0;

        if (p->a == ELEMENT_F64)
            PRODUCT(double);
        else
            PRODUCT(float);
    }
    free(sums);
}

static void gemm_run(const struct kernel *k, const struct cuda_ops_gemm *p)
{
    const struct kernel o = kernel_of_out(k, p);

    product_run(&(struct product){
        .gemm = p, .a = k->element, .b = k->element, .out = o.element, .size = k->size, .out_size = o.size});
}

static void scaled_run(const struct cuda_ops_gemm_scaled *p)
{
    static const enum element outs[] = {
        [CUDA_OPS_OUT_F32] = ELEMENT_F32, [CUDA_OPS_OUT_F16] = ELEMENT_F16, [CUDA_OPS_OUT_BF16] = ELEMENT_BF16};

    product_run(&(struct product){.gemm = &p->gemm,
                                  .scale_a = &p->scale_a,
                                  .scale_b = &p->scale_b,
                                  .a = p->a_format == CUDA_OPS_E4M3 ? ELEMENT_E4M3 : ELEMENT_E5M2,
                                  .b = p->b_format == CUDA_OPS_E4M3 ? ELEMENT_E4M3 : ELEMENT_E5M2,
                                  .out = outs[p->out_type],
                                  .size = 1,
                                  .out_size = out_size(p)});
}

static void mapped_run(const struct kernel *k, const struct cuda_ops_gemm_mapped *p)
{
    struct cuda_ops_gemm gemm;

    if (maps_read(p, k->symbol, &gemm))
        gemm_run(k, &gemm);
}

static void gate_run(const struct cuda_ops_gate *p)
{
    const uint64_t begin = now_ns();

    while (__atomic_load_n((const uint64_t *)(uintptr_t)p->go, __ATOMIC_ACQUIRE) < p->value &&
           now_ns() - begin < p->most_ns)
        sched_yield();
}

static void move_run(const struct cuda_ops_move *p)
{
    for (unsigned i = 0; i < p->count; i++)
        bytes_copy((void *)(uintptr_t)p->pieces[i].to, (const void *)(uintptr_t)p->pieces[i].from,
                   (size_t)p->pieces[i].units * p->pieces[i].width);
}

/* By a clock whose steps may be long. */
static void stamp(const void *params, unsigned word, uint64_t now)
{
    const struct cuda_ops_stamps *s = params;
    const char *step = getenv("KOPS_STANDIN_CLOCK_STEP");

    if (step)
        now -= now % strtoull(step, NULL, 10);
    if (s->times)
        __atomic_store_n((uint64_t *)(uintptr_t)s->times + word, now, __ATOMIC_RELAXED);
}

const char *kernel_symbol(const struct kernel *kernel)
{
    return kernel->symbol;
}

bool kernel_is_gate(const struct kernel *kernel)
{
    return kernel->layout == LAYOUT_GATE;
}

bool kernel_is_idle(const struct kernel *kernel, const void *params)
{
    return kernel_is_gate(kernel) ||
           (kernel->layout == LAYOUT_VECTOR && !((const struct cuda_ops_vector *)params)->count);
}

void kernel_run(const struct kernel *kernel, const void *params)
{
    const uint64_t begin = now_ns();

    stamp(params, 0, begin);
    switch (kernel->layout) {
    case LAYOUT_VECTOR:
        vector_run(kernel, params);
        break;
    case LAYOUT_STRIDED:
        strided_run(kernel, params);
        break;
    case LAYOUT_GEMM:
        gemm_run(kernel, params);
        break;
    case LAYOUT_REPACK:
        repack_run(kernel->size, kernel->pieces, params);
        break;
    case LAYOUT_MAPPED:
        mapped_run(kernel, params);
        break;
    case LAYOUT_SCALED:
        scaled_run(params);
        break;
    case LAYOUT_MOVE:
        move_run(params);
        break;
    case LAYOUT_GATE:
        gate_run(params);
        break;
    }
    stamp(params, 1, now_ns() + 1); /* no kernel takes no time */
}
