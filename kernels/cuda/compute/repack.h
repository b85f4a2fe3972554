/* Gemms of more than one launch: operands are first copied to aligned rows or split into pieces, or the product is
 * activated by a second kernel (repack_sketch.h). The copies lie in the queue's scratch memory, which its products
 * share, since they run one after the other. */
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

/* Returns the variant of that name; NULL: no variant of several launches has the name. */
const char *cuda_repack_variant(const char *name);

/* Prepares the work as a gemm of several launches. Errors: invalid_argument (the variant does not apply), unsupported,
 * out_of_memory, device_lost. Thread: any; may block when cuda_repack_is_ready() is false. The context is current. */
int cuda_repack_prepare(const struct cuda_kernels *k, const char *variant, struct cuda_work *work, struct error *e);
bool cuda_repack_is_ready(const struct cuda_kernels *k, const struct plan *plan, const uint64_t *addresses,
                          const char *variant);

/* Thread: loop. */
int cuda_repack_issue(const struct cuda_queue *q, struct cuda_repack *r, struct error *e);
/* NULL is allowed; returns NULL. */
struct cuda_repack *cuda_repack_free(struct cuda_repack *r);

#endif
