/* Element-wise ops over any plan: contiguous operands in ranges, strided or broadcast operands in tiles. Thread: the
 * pool's caller. */
#ifndef KOPS_HOST_ELEMENTWISE_H
#define KOPS_HOST_ELEMENTWISE_H

#include "core/op.h"
#include "kernels.h"
#include "pool.h"

/* `pointers`: element (0, …, 0) of each input, then of the output. `bypass`: stores may go past the caches. */
void elementwise_run(struct pool *pool, const struct kernels *kernels, const struct op *op, const struct plan *plan,
                     unsigned char *const *pointers, bool bypass);

/* Estimates the time of one thread in ns, to decide where to run. */
double elementwise_cost_ns(const struct op *op, const struct plan *plan);

#endif
