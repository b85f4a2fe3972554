/* Encodes tensor maps, under the driver's conditions, and reads them. */
#include <string.h>

#include "kernels/cuda/ops/params.h"
#include "standin.h"

enum { DIMENSIONS = 3, MAGIC = 0x6d617073, STRIDE = 16, ELEMENT_BYTES = 2, MOST_BOX = 256, MOST_STEP = 8 };

/* In place of the 128 bytes of a CUtensorMap. */
struct map {
    uint32_t magic;
    uint8_t type, rank;
    uint64_t address, extents[MAPS_RANK], strides[MAPS_RANK - 1];
    uint16_t box[MAPS_RANK];
};

_Static_assert(sizeof(struct map) <= sizeof(struct cuda_ops_map), "it fits");

static unsigned size_of(CUtensorMapDataType type)
{
    static const unsigned char sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

    return (unsigned)type < sizeof(sizes) ? sizes[type] : 0;
}

static bool is_float(CUtensorMapDataType type)
{
    return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

/* The conditions of cuda.h. */
static bool is_valid(const struct map *m, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                     CUtensorMapSwizzle swizzle)
{
    static const unsigned spans[] = {0, 32, 64, 128};
    const unsigned size = size_of((CUtensorMapDataType)m->type), row = m->box[0] * size;
    const unsigned unit = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 2 * STRIDE : STRIDE;

    if (!size || m->address % unit || (unsigned)swizzle > CU_TENSOR_MAP_SWIZZLE_128B || (interleave && m->rank < 3) ||
        (interleave == CU_TENSOR_MAP_INTERLEAVE_32B && swizzle != 1))
        return false;
    for (unsigned d = 0; d < m->rank; d++)
        if (!m->extents[d] || m->extents[d] > UINT64_C(1) << 32 || !m->box[d] || m->box[d] > MOST_BOX || !steps[d] ||
            steps[d] > MOST_STEP)
            return false;
    for (unsigned d = 0; d + 1 < m->rank; d++)
        if (!m->strides[d] || m->strides[d] % unit || m->strides[d] >= UINT64_C(1) << 40)
            return false;
    return interleave || (row % STRIDE == 0 && (!swizzle || row <= spans[swizzle]));
}

API cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                           const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                           const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    struct map m = {
        .magic = MAGIC, .type = (uint8_t)type, .rank = (uint8_t)rank, .address = (uint64_t)(uintptr_t)address};

    if (rank < 1 || rank > MAPS_RANK || (unsigned)interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
        (unsigned)promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B || (fill && !is_float(type)) || (uintptr_t)map % 64)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned d = 0; d < rank; d++) {
        m.extents[d] = extents[d];
        m.box[d] = (uint16_t)(box[d] > UINT16_MAX ? 0 : box[d]);
        if (d + 1 < rank)
            m.strides[d] = strides[d];
    }
    if (!is_valid(&m, steps, interleave, swizzle))
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof(*map));
    memcpy(map, &m, sizeof(m));
    return CUDA_SUCCESS;
}

bool maps_find(const void *map, struct maps_tensor *ret)
{
    struct map m;

    memcpy(&m, map, sizeof(m));
    if (m.magic != MAGIC)
        return false;
    *ret = (struct maps_tensor){.address = m.address, .count = 1, .size = size_of((CUtensorMapDataType)m.type)};
    ret->bytes = ret->size;
    for (unsigned d = 0; d < m.rank; d++) {
        ret->extents[d] = m.extents[d];
        ret->strides[d] = d ? m.strides[d - 1] : ret->size;
        ret->count *= m.extents[d];
        ret->bytes += (m.extents[d] - 1) * ret->strides[d];
    }
    return true;
}

size_t maps_next(const unsigned char *params, size_t at, size_t size)
{
    const uint32_t magic = MAGIC;

    for (at = (at + STRIDE - 1) / STRIDE * STRIDE; at + sizeof(CUtensorMap) < size; at += STRIDE)
        if (memcmp(params + at, &magic, sizeof(magic)) == 0)
            return at;
    return 0;
}

uint64_t maps_element(const struct maps_tensor *t, uint64_t i)
{
    uint64_t at = t->address;

    for (unsigned d = 0; d < MAPS_RANK && t->extents[d]; i /= t->extents[d], d++)
        at += i % t->extents[d] * t->strides[d];
    return at;
}

/* An operand with `rows` rows and `columns` columns; `turned`: its columns are contiguous. */
static bool read_matrix(const struct cuda_ops_map *map, uint64_t rows, uint64_t columns, bool turned, uint64_t batches,
                        struct cuda_ops_matrix *ret)
{
    struct map m;
    uint64_t lead;

    memcpy(&m, map, sizeof(m));
    if (m.magic != MAGIC || m.rank != DIMENSIONS || size_of((CUtensorMapDataType)m.type) != ELEMENT_BYTES ||
        m.extents[0] != (turned ? rows : columns) || m.extents[1] != (turned ? columns : rows) ||
        m.extents[2] != batches)
        return false;
    lead = m.strides[0] / ELEMENT_BYTES;
    *ret = (struct cuda_ops_matrix){.address = m.address, .row = turned ? 1 : lead, .column = turned ? lead : 1};
    ret->batch[0] = batches > 1 ? m.strides[1] / ELEMENT_BYTES : 0;
    return true;
}

bool maps_read(const struct cuda_ops_gemm_mapped *p, const char *symbol, struct cuda_ops_gemm *ret)
{
    const char *ways = strrchr(symbol, '_') + 1; /* "kx": a lies along k, b across */

    memset(ret, 0, sizeof(*ret));
    ret->m = p->m;
    ret->n = p->n;
    ret->k = p->k;
    ret->alpha = p->alpha;
    ret->beta = p->beta;
    ret->batch_count = ret->batch_shape[0] = p->batch_count;
    ret->batch_rank = 1;
    ret->activation = p->activation;
    ret->bias = (struct cuda_ops_matrix){
        .address = p->bias_address, .row = p->bias_row, .column = p->bias_column, .batch = {p->bias_batch}};
    if (!p->k || !p->tiles_m || !p->tiles_n || !p->group ||
        !read_matrix(&p->out, p->m, p->n / 8 * 8, false, p->batch_count, &ret->out))
        return false;
    return ret->out.address == p->out_address && (p->m == 1 || ret->out.row == p->out_row) &&
           (p->batch_count == 1 || ret->out.batch[0] == p->out_batch) &&
           read_matrix(&p->a, p->m, p->k, ways[0] == 'x', p->a_batch ? p->batch_count : 1, &ret->a) &&
           read_matrix(&p->b, p->k, p->n, ways[1] == 'k', p->b_batch ? p->batch_count : 1, &ret->b);
}
