/* Encodes tensor maps, under the driver's conditions, and reads them. */
#include "maps.h"

#include <string.h>

#include "standin.h"

enum { DIMENSIONS = 3, MAGIC = 0x6d617073, STRIDE = 16, ELEMENT_BYTES = 2 };

/* In place of the 128 bytes of a CUtensorMap. */
struct map {
    uint32_t magic, type;
    uint64_t address, extents[DIMENSIONS], strides[DIMENSIONS - 1];
    uint32_t box[DIMENSIONS];
};

_Static_assert(sizeof(struct map) <= sizeof(struct cuda_ops_map), "it fits");

static bool is_valid(const struct map *m)
{
    if (m->address % STRIDE ||
        (m->type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && m->type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16))
        return false;
    for (unsigned d = 0; d < DIMENSIONS; d++)
        if (!m->extents[d] || m->extents[d] > UINT64_C(1) << 32 || !m->box[d] || m->box[d] > 256)
            return false;
    for (unsigned d = 0; d < DIMENSIONS - 1; d++)
        if (!m->strides[d] || m->strides[d] % STRIDE || m->strides[d] >= UINT64_C(1) << 40)
            return false;
    return m->box[0] * ELEMENT_BYTES <= 128; /* of the swizzle */
}

API cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                           const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                           const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    struct map m = {.magic = MAGIC, .type = (uint32_t)type, .address = (uint64_t)(uintptr_t)address};

    (void)promotion;
    if (rank != DIMENSIONS || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
        fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || (uintptr_t)map % 64)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned d = 0; d < DIMENSIONS; d++) {
        if (steps[d] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        m.extents[d] = extents[d];
        m.box[d] = box[d];
        if (d < DIMENSIONS - 1)
            m.strides[d] = strides[d];
    }
    if (!is_valid(&m))
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof(*map));
    memcpy(map, &m, sizeof(m));
    return CUDA_SUCCESS;
}

/* An operand with `rows` rows and `columns` columns; `turned`: its columns are contiguous. */
static bool read_matrix(const struct cuda_ops_map *map, uint64_t rows, uint64_t columns, bool turned, uint64_t batches,
                        struct cuda_ops_matrix *ret)
{
    struct map m;
    uint64_t lead;

    memcpy(&m, map, sizeof(m));
    if (m.magic != MAGIC || m.extents[0] != (turned ? rows : columns) || m.extents[1] != (turned ? columns : rows) ||
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
