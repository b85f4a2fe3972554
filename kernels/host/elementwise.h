/* Elementwise ops over any plan: contiguous ranges, and strided or broadcast layouts by tiles. Thread: the pool's
 * caller. */
#ifndef KOPS_HOST_ELEMENTWISE_H
#define KOPS_HOST_ELEMENTWISE_H

#include "core/op.h"
#include "kernels.h"
#include "pool.h"

/* pointers: element (0, …, 0) of each input, then of the output. `bypass`: stores may go past the caches. */
void elementwise_run(struct pool *pool, const struct kernels *kernels, const struct op *op, const struct plan *plan,
                     unsigned char *const *pointers, bool bypass);

/* About how long one thread would take, in ns; to decide where to run, not to promise. */
double elementwise_cost_ns(const struct op *op, const struct plan *plan);

#endif
