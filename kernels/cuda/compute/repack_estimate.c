/* Whether copies of a gemm's operands pay. */
#include "repack_sketch.h"

/* What an H100 does, as measured at 4096 and 8192: products of 2·m·n·k operations a second with operands as they are
 * and as copies, and bytes that a copy reads and writes. Another device is slower in all of these by much the same
 * factor, so the choice is the same. */
#define MISALIGNED_16 130e12
#define ALIGNED_16    650e12
#define MISALIGNED_32 115e12
#define ALIGNED_32    270e12
#define F32           51e12
#define BYTES         2.5e12
#define LAUNCH        4e-6 /* seconds between one launch and the next */

const char *repack_estimate(const struct plan *plan, const uint64_t *addresses)
{
    const struct plan_gemm *g = &plan->gemm;
    const double work = 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count;
    const bool in_pieces = plan->dtype == DTYPE_F32 && g->in_pieces && g->high_precision_only;
    const bool is_16 = dtype_size(plan->dtype) == 2;
    const char *variant = in_pieces ? repack_bf16x3 : repack_padded;
    struct repack_panel p;
    struct error ignored;
    double copied;

    if ((plan->dtype == DTYPE_F32 && g->high_precision_only && !in_pieces) || repack_check(plan, variant, &ignored) < 0)
        return NULL;
    p = repack_lay_out(plan, repack_mode(variant), addresses, (struct repack_extents){0, 0, 0},
                       (struct repack_extents){repack_batch(plan), g->m, g->n});
    copied = (double)p.bytes * 2 / BYTES + LAUNCH * (1 + p.out_is_copied);
    if (in_pieces) /* a product of the first pieces, and one of twice their k, which each read or write out */
        return 3 * work / ALIGNED_16 + copied + 3 * 4 * (double)(g->m * g->n) * (double)g->batch_count / BYTES +
                           LAUNCH <
                       work / F32
                   ? variant
                   : NULL;
    if (p.bytes == 0)
        return NULL;
    return work / (is_16 ? ALIGNED_16 : ALIGNED_32) + copied < work / (is_16 ? MISALIGNED_16 : MISALIGNED_32) ? variant
                                                                                                              : NULL;
}
