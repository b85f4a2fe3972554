/* Products of 8-bit floats with scales, over any plan: blocks of both operands are converted to f32, multiplied by
 * whichever library or kernel, and added up in f32; one pass over the sums scales and rounds them. Thread: the pool's
 * caller. */
#ifndef KOPS_HOST_SCALED_H
#define KOPS_HOST_SCALED_H

#include "linear.h"

/* The largest of the products of f32 that scaled_run() makes of the plan. */
struct plan scaled_product(const struct plan *plan);

/* A plan with scales. Errors: out_of_memory, and those of the call's `product`. */
int scaled_run(const struct linear_call *call, struct error *e);

#endif
