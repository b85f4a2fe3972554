/* What kernels read and write, by their parameters. */
#include "kernel.h"
#include "maps.h"

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

struct kernel kernel_of_out(const struct kernel *k, const struct cuda_ops_gemm *p)
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
