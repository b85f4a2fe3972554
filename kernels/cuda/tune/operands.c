/* The memory that is measured on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "tune.h"

enum {
    ALIGNMENT = 256,       /* of an operand's memory, before the request's own offset */
    PIECE_BYTES = 1 << 18, /* of random values; repeated. Making them takes the host some milliseconds */
};

/* All sets together: several times what GPUs have as cache, where a set is small. */
static const uint64_t ROTATED_BYTES = (uint64_t)256 << 20;
/* A set that is larger than this part of the free memory is not measured. */
enum { FREE_PARTS = 4 };

/* Elements from the first to behind the last one of an operand of the plan. */
static uint64_t extent_of(const struct plan_gemm *g, const struct plan_matrix *m, int64_t rows, int64_t columns)
{
    uint64_t last = (uint64_t)((rows - 1) * m->row + (columns - 1) * m->column);

    for (unsigned d = 0; d < g->batch_rank; d++)
        last += (uint64_t)((g->batch_shape[d] - 1) * m->batch[d]);
    return last + 1;
}

/* Bytes of each operand, with its offset and the gap behind it. */
static void sizes_of(const struct tuning_request *request, uint64_t *sizes, unsigned *ret_n)
{
    const struct plan *plan = &request->step.plan;
    const struct plan_gemm *g = &plan->gemm;

    *ret_n = plan_gemm_out(g) + 1;
    for (unsigned i = 0; i < *ret_n; i++) {
        const uint64_t extent =
            extent_of(g, plan_gemm_matrix(g, i), i == PLAN_GEMM_B ? g->k : g->m, i == PLAN_GEMM_A ? g->k : g->n);

        sizes[i] = (extent * dtype_size(step_dtype(&request->step, i)) + request->alignment[i] + 2 * ALIGNMENT - 1) /
                   ALIGNMENT * ALIGNMENT;
    }
}

/* ---- values ---- */

static uint64_t next_random(uint64_t *state)
{
    /* SplitMix64, by Guy Steele, Doug Lea and Christine Flood. */
    uint64_t z = *state += 0x9e3779b97f4a7c15U;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

/* A normal value, by Box and Muller. */
static double next_normal(uint64_t *state)
{
    const double u = ((double)(next_random(state) >> 11) + 1) * 0x1p-53;
    const double v = (double)(next_random(state) >> 11) * 0x1p-53;

    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* f16 by truncation: the power that a product takes depends on its bits, no result on their last one. */
static uint16_t half_of(float f)
{
    uint32_t bits;
    int exponent;

    memcpy(&bits, &f, sizeof(bits));
    exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
    if (exponent <= 0)
        return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

/* Both f8 from f16, by truncation; small ones become 0. */
static uint8_t eighth_of(float f, enum dtype dtype)
{
    const uint16_t half = half_of(f);
    const int magnitude = (half >> 7 & 0xff) - (8 << 3); /* e4m3: the exponent's bias is 7, not 15 */

    if (dtype == DTYPE_F8_E5M2)
        return (uint8_t)(half >> 8);
    return (uint8_t)((half >> 8 & 0x80) | (magnitude < 0 ? 0 : magnitude));
}

static void fill(void *piece, enum dtype dtype, uint64_t state)
{
    const size_t n = PIECE_BYTES / dtype_size(dtype);

    for (size_t i = 0; i < n; i++) {
        const double value = next_normal(&state);
        const float f = (float)value;
        uint32_t bits;

        memcpy(&bits, &f, sizeof(bits));
        if (dtype == DTYPE_F64)
            ((double *)piece)[i] = value;
        else if (dtype == DTYPE_F32)
            ((float *)piece)[i] = f;
        else if (dtype == DTYPE_BF16)
            ((uint16_t *)piece)[i] = (uint16_t)(bits >> 16);
        else if (dtype == DTYPE_F16)
            ((uint16_t *)piece)[i] = half_of(f);
        else
            ((uint8_t *)piece)[i] = eighth_of(f, dtype);
    }
}

/* The device copies faster than the host does: what is there is doubled until it fills all. */
static int repeat_piece(const struct tune_operands *o, CUstream stream, const void *piece, uint64_t bytes,
                        struct error *e)
{
    uint64_t at = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    int r = CUDA_CALL(o->device, e, MemcpyHtoDAsync, o->memory, piece, at, stream);

    while (r == 0 && at < bytes) {
        const uint64_t n = CUDA_HAS(MemcpyDtoDAsync) ? at : PIECE_BYTES, take = bytes - at < n ? bytes - at : n;

        r = CUDA_HAS(MemcpyDtoDAsync)
                ? CUDA_CALL(o->device, e, MemcpyDtoDAsync, o->memory + at, o->memory, take, stream)
                : CUDA_CALL(o->device, e, MemcpyHtoDAsync, o->memory + at, piece, take, stream);
        at += take;
    }
    return r;
}

static int copy_values(const struct tune_operands *o, CUstream stream, enum dtype dtype, uint64_t bytes,
                       struct error *e)
{
    void *piece = malloc(PIECE_BYTES);
    int r;

    if (!piece)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for random values");
    fill(piece, dtype, bytes);
    r = repeat_piece(o, stream, piece, bytes, e);
    if (r == 0)
        r = CUDA_CALL(o->device, e, StreamSynchronize, stream);
    free(piece);
    return r;
}

/* ---- memory ---- */

static int count_sets(struct tune_operands *o, uint64_t set, struct error *e)
{
    uint64_t available = 0, n;

    if (cuda_device_memory_free(o->device, &available) < 0)
        available = ROTATED_BYTES * FREE_PARTS;
    available /= FREE_PARTS;
    if (set > available)
        return error_set(e, ERROR_OUT_OF_MEMORY,
                         "tuning needs %llu MiB of GPU memory for the operands, more than a quarter of what is free",
                         (unsigned long long)(set >> 20));
    n = ROTATED_BYTES / set + 1;
    while (n > 1 && n * set > available)
        n--;
    o->n_sets = n > TUNE_SETS_MAX ? TUNE_SETS_MAX : (unsigned)n;
    return 0;
}

int tune_operands_make(struct tune_operands *o, struct cuda_device *d, CUstream stream,
                       const struct tuning_request *request, struct error *e)
{
    uint64_t sizes[STEP_MAX_OPERANDS], set = 0, at;

    *o = (struct tune_operands){.device = d};
    sizes_of(request, sizes, &o->n_operands);
    for (unsigned i = 0; i < o->n_operands; i++)
        set += sizes[i];
    if (count_sets(o, set, e) < 0 || cuda_scratch_alloc(d, stream, o->n_sets * set, &o->memory, e) < 0)
        return -1;
    at = o->memory;
    for (unsigned s = 0; s < o->n_sets; s++)
        for (unsigned i = 0; i < o->n_operands; at += sizes[i++])
            o->addresses[s][i] = at + request->alignment[i] % ALIGNMENT;
    if (copy_values(o, stream, request->step.plan.dtype, o->n_sets * set, e) == 0)
        return 0;
    tune_operands_free(o, stream);
    return -1;
}

void tune_operands_free(struct tune_operands *o, CUstream stream)
{
    cuda_scratch_free(o->device, stream, o->memory);
    o->memory = 0;
}

const uint64_t *tune_operands_next(struct tune_operands *o)
{
    o->next = (o->next + 1) % o->n_sets;
    return o->addresses[o->next];
}
