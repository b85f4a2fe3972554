/* Gemms of more than one launch: operands are copied first, to aligned rows or split into pieces, or the product is
 * activated behind (repack_sketch.h). The copies lie in the queue's scratch memory, which the products of one queue
 * share: they run one after the other. */
#ifndef KOPS_CUDA_REPACK_H
#define KOPS_CUDA_REPACK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/plan.h"
#include "util/error.h"

struct cuda_kernels;
struct cuda_queue;
struct cuda_repack;
struct cuda_work;

/* The variant of that name, or NULL: no such one takes more than one launch. */
const char *cuda_repack_variant(const char *name);

/* Makes the work such a gemm, to be issued as often as the job repeats. Errors: invalid_argument (the variant does not
 * apply), unsupported, out_of_memory, device_lost. Thread: any; may block when cuda_repack_is_ready() says no. The
 * context is current. */
int cuda_repack_prepare(const struct cuda_kernels *k, const char *variant, struct cuda_work *work, struct error *e);
bool cuda_repack_is_ready(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                          const char *variant);

/* Thread: loop. */
int cuda_repack_issue(const struct cuda_queue *q, struct cuda_repack *r, struct error *e);
/* NULL is allowed; returns NULL. */
struct cuda_repack *cuda_repack_free(struct cuda_repack *r);

#endif
