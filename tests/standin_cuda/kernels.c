/* The kernels of kernels/cuda/ops, as plain loops over what params.h says: what is computed, and what it touches.
 *
 * A symbol names the op, the dtype and how the work is laid out; the rest of it says how a real kernel goes about it
 * and is accepted as it is. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/ops/params_scaled.h"
#include "maps.h"
#include "standin.h"

_Static_assert(sizeof(struct cuda_ops_gemm_scaled) <= MAX_PARAMS && sizeof(struct cuda_ops_strided) <= MAX_PARAMS,
               "an operation has room for every kernel's parameters");

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
    LAYOUT_REPACK
};

struct kernel {
    struct kernel *next;
    enum kernel_op op;
    unsigned inputs;
    enum kernel_layout layout;
    enum element element;
    unsigned size;   /* of an element */
    unsigned pieces; /* of LAYOUT_REPACK; 0: a copy */
    char symbol[96];
};

/* ---- names ---- */

static bool parse_element(const char *name, struct kernel *k)
{
    static const struct {
        const char *name;
        enum element element;
        unsigned size;
        bool raw;
    } elements[] = {{"f32", ELEMENT_F32, 4, false},   {"f64", ELEMENT_F64, 8, false}, {"f16", ELEMENT_F16, 2, false},
                    {"bf16", ELEMENT_BF16, 2, false}, {"u8", ELEMENT_RAW, 1, false},  {"u16", ELEMENT_RAW, 2, false},
                    {"u32", ELEMENT_RAW, 4, false},   {"u64", ELEMENT_RAW, 8, false}, {"1", ELEMENT_RAW, 1, true},
                    {"2", ELEMENT_RAW, 2, true},      {"4", ELEMENT_RAW, 4, true},    {"8", ELEMENT_RAW, 8, true}};

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
    k->layout = strcmp(layout, "vector") == 0 ? LAYOUT_VECTOR : LAYOUT_STRIDED;
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
    } kinds[] = {
        {"kops_repack_2", 2, 0}, {"kops_repack_4", 4, 0}, {"kops_repack_bf16x2", 4, 2}, {"kops_repack_bf16x3", 4, 3}};

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
        [LAYOUT_REPACK] = sizeof(struct cuda_ops_repack)};

    return sizes[kernel->layout];
}

/* ---- what is touched ---- */

bool op_use_strided(struct op *op, unsigned size, uint64_t address, unsigned rank, const uint64_t *shape,
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
static bool vector_hints_hold(const struct cuda_ops_vector *p, unsigned size)
{
    if (p->head >= p->count)
        return true;
    return (p->out + (uint64_t)p->head * size) % 16 == 0;
}

static bool vector_uses(const struct kernel *k, const struct cuda_ops_vector *p, struct op *op)
{
    const uint64_t one = 1, a_step = p->a_step, b_step = p->b_step;

    if (!p->count)
        return true;
    if (p->a_step > 1 || p->b_step > 1 || !vector_hints_hold(p, k->size))
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

/* Elements of the gemm's out, which may be wider than those of its operands. */
static struct kernel out_kind(const struct kernel *k, const struct cuda_ops_gemm *p)
{
    struct kernel o = *k;

    if (p->out_wide && k->size == 2) {
        o.element = ELEMENT_F32;
        o.size = sizeof(float);
    }
    return o;
}

bool gemm_matrix_uses(unsigned size, const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *x, uint64_t rows,
                      uint64_t columns, bool write, struct op *op)
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

bool gemm_batches_agree(const struct cuda_ops_gemm *p)
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
    const struct kernel o = out_kind(k, p);

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

/* Every struct of parameters begins with them. */
static const struct cuda_ops_stamps *stamps_of(const void *params)
{
    return params;
}

static bool stamps_use(const struct cuda_ops_stamps *s, struct op *op)
{
    if (!s->times)
        return true;
    op_use(op, s->times, 2 * sizeof(uint64_t), true);
    return s->times % sizeof(uint64_t) == 0 && s->count && s->count % CUDA_OPS_COUNT_BYTES == 0 && s->counting;
}

bool kernel_uses(const struct kernel *kernel, const void *params, struct op *op)
{
    if (!stamps_use(stamps_of(params), op))
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
    case LAYOUT_GATE:
        op_use(op, ((const struct cuda_ops_gate *)params)->go, sizeof(uint64_t), false);
        return true;
    default:
        return gemm_uses(kernel, params, op);
    }
}

/* ---- what is computed ---- */

static float load_float(enum element e, uint64_t address)
{
    const void *p = (const void *)(uintptr_t)address;

    if (e == ELEMENT_F32)
        return *(const float *)p;
    return e == ELEMENT_F16 ? half_to_float(*(const uint16_t *)p) : bfloat_to_float(*(const uint16_t *)p);
}

static void store_float(enum element e, uint64_t address, float value)
{
    void *p = (void *)(uintptr_t)address;

    if (e == ELEMENT_F32)
        *(float *)p = value;
    else
        *(uint16_t *)p = e == ELEMENT_F16 ? float_to_half(value) : float_to_bfloat(value);
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
                                 : (T)((a) * (a)))

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
        const double x = *(const double *)(uintptr_t)a, y = *(const double *)(uintptr_t)b;

        *(double *)(uintptr_t)out = COMPUTE(double, k->op, x, y);
    } else {
        const float x = load_float(k->element, a), y = load_float(k->element, b);

        store_float(k->element, out, COMPUTE(float, k->op, x, y));
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

uint64_t gemm_batch_address(const struct cuda_ops_gemm *p, const struct cuda_ops_matrix *x, uint64_t batch,
                            unsigned size)
{
    uint64_t offset = 0;

    for (unsigned d = 0; d < p->batch_rank; d++) {
        offset += batch % p->batch_shape[d] * x->batch[d];
        batch /= p->batch_shape[d];
    }
    return x->address + offset * size;
}

/* The bias of element (i, j), 0 where there is none. */
#define BIAS(LOAD) (bias ? LOAD(bias + (i * p->bias.row + j * p->bias.column) * k->size) : 0)

/* One matrix product: T is the type that accumulates, LOAD and STORE convert. b is copied row by row first, so that
 * the inner loop runs over neighbours; `sums` has room for k · n + n of them. */
#define GEMM(T, LOAD, LOAD_OUT, STORE)                                                                                 \
    do {                                                                                                               \
        T *copy = sums, *row = copy + p->k * p->n;                                                                     \
        for (uint64_t l = 0; l < p->k; l++)                                                                            \
            for (uint64_t j = 0; j < p->n; j++)                                                                        \
                copy[l * p->n + j] = LOAD(b + (l * p->b.row + j * p->b.column) * k->size);                             \
        for (uint64_t i = 0; i < p->m; i++) {                                                                          \
            memset(row, 0, p->n * sizeof(T));                                                                          \
            for (uint64_t l = 0; l < p->k; l++) {                                                                      \
                const T x = LOAD(a + (i * p->a.row + l * p->a.column) * k->size);                                      \
                for (uint64_t j = 0; j < p->n; j++)                                                                    \
                    row[j] += x * copy[l * p->n + j];                                                                  \
            }                                                                                                          \
            for (uint64_t j = 0; j < p->n; j++) {                                                                      \
                const uint64_t at = out + (i * p->out.row + j * p->out.column) * o.size;                               \
                const T old = p->beta == 0 ? 0 : (T)p->beta * LOAD_OUT(at);                                            \
                STORE(at, (T)finish((double)((T)p->alpha * row[j] + old + BIAS(LOAD)), p->activation));                \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)
#define LOAD_DOUBLE(address)         (*(const double *)(uintptr_t)(address))
#define STORE_DOUBLE(address, value) (*(double *)(uintptr_t)(address) = (value))
#define LOAD_FLOAT(address)          load_float(k->element, (address))
#define LOAD_FLOAT_OUT(address)      load_float(o.element, (address))
#define STORE_FLOAT(address, value)  store_float(o.element, (address), (value))

static void gemm_run(const struct kernel *k, const struct cuda_ops_gemm *p)
{
    void *sums = malloc((p->k + 1) * p->n * sizeof(double) + 1);
    const struct kernel o = out_kind(k, p);

    for (uint64_t c = 0; sums && c < p->batch_count; c++) {
        uint64_t a = gemm_batch_address(p, &p->a, c, k->size), b = gemm_batch_address(p, &p->b, c, k->size),
                 out = gemm_batch_address(p, &p->out, c, o.size),
                 bias = p->bias.address ? gemm_batch_address(p, &p->bias, c, k->size) : 0;

        if (k->element == ELEMENT_F64)
            GEMM(double, LOAD_DOUBLE, LOAD_DOUBLE, STORE_DOUBLE);
        else
            GEMM(float, LOAD_FLOAT, LOAD_FLOAT_OUT, STORE_FLOAT);
    }
    if (!sums)
        fprintf(stderr, "cuda_standin: no memory for a gemm of %llu × %llu\n", (unsigned long long)p->k,
                (unsigned long long)p->n);
    free(sums);
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

/* By a clock whose steps may be long. */
static void stamp(const void *params, unsigned word, uint64_t now)
{
    const struct cuda_ops_stamps *s = stamps_of(params);
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
    case LAYOUT_GATE:
        gate_run(params);
        break;
    }
    stamp(params, 1, now_ns() + 1); /* no kernel takes no time */
}
