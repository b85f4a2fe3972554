/* Whether copies of a gemm's operands pay. */
#include "repack_sketch.h"

/* What an H100 takes, as measured from 512 to 8192: a floor, and a rate of 2·m·n·k operations, or of bytes that copies
 * read and write; f64 is an H200's. Misaligned products of more than 4096 are up to 1.7 times as fast, and copies pay
 * all the same. Another device is slower in all of these but f64 by much the same factor, so the choice is the same. */
#define FLOOR  10e-6 /* seconds, of products that use no fast kernel */
#define LAUNCH 4e-6  /* from one launch to the next */
#define F32    41e12
#define COPIED 2.5e12

/* By the bytes of an element; f32 as tf32. */
static const struct rates {
    double misaligned, aligned;
} rates[] = {[2] = {90e12, 650e12}, [4] = {85e12, 270e12}, [8] = {41e12, 54e12}};

/* Copies, and as many products with all of out written or, after the first, read and written. */
static double seconds(const struct repack_panel *p, unsigned products, double work, double rate)
{
    const double out = (double)(p->g.m * p->g.n) * (double)p->g.batch_count * (double)repack_out_size(p->plan);

    return LAUNCH * (products + 1 + p->out_is_copied + p->bias_is_copied) + 2 * (double)p->bytes / COPIED +
           work / rate + (products - 1) * 3 * out / COPIED;
}

const char *repack_estimate(const struct plan *plan, const uint64_t *addresses)
{
    const struct plan_gemm *g = &plan->gemm;
    const double work = 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count;
    const bool is_f32 = plan->dtype == DTYPE_F32, in_pieces = is_f32 && g->in_pieces && g->high_precision_only;
    const char *variant = in_pieces ? repack_bf16x3 : repack_padded;
    const struct repack_extents all = {repack_batch(plan), g->m, g->n};
    const struct rates *of;
    struct error ignored;
    struct repack_panel p;

    if (repack_should_activate(plan))
        return repack_activated;
    if ((is_f32 && g->high_precision_only && !in_pieces) || repack_check(plan, variant, &ignored) < 0)
        return NULL;
    p = repack_lay_out(plan, repack_mode(variant), addresses, (struct repack_extents){0, 0, 0}, all);
    if (in_pieces)
        return seconds(&p, 2, 3 * work, rates[2].aligned) < FLOOR + work / F32 ? variant : NULL;
    if (p.bytes == 0)
        return NULL;
    of = &rates[dtype_size(plan->dtype)];
    return seconds(&p, 1, work, of->aligned) < FLOOR + work / of->misaligned ? variant : NULL;
}
