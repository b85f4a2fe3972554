/* Tensor maps of the stand-in: cuTensorMapEncodeTiled() writes what it was given, and kernels read it. */
#ifndef KOPS_STANDIN_MAPS_H
#define KOPS_STANDIN_MAPS_H

#include <stdbool.h>

#include "kernels/cuda/ops/params.h"

/* The product that a kernel of that symbol computes by its maps; false where they are none, or of another shape than
 * the rest of the parameters says. */
bool maps_read(const struct cuda_ops_gemm_mapped *p, const char *symbol, struct cuda_ops_gemm *ret);

#endif
