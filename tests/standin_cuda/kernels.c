/* The kernels of kernels/cuda/ops, as plain loops over what params.h says. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "kernel.h"
#include "maps.h"

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
    const struct kernel o = kernel_of_out(k, p);

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
