// bfloat16: a float without its lower half.
#ifndef KOPS_HOST_CUDA_BF16_H
#define KOPS_HOST_CUDA_BF16_H

#include "cuda_on_host.h"

#include "kops_host/half.h"

KOPS_HOST_SMALL(__nv_bfloat16, __nv_bfloat16_raw, kops_host_bfloat_bits, kops_host_bfloat_value)
KOPS_HOST_PAIR(__nv_bfloat16, __nv_bfloat162, __nv_bfloat162_raw)

#define KOPS_HOST_H                   __nv_bfloat16
#define KOPS_HOST_H2                  __nv_bfloat162
#define KOPS_HOST_NAME(before, after) before##bfloat16##after
#define KOPS_HOST_PAIR_NAME           __bfloat162bfloat162
#include "kops_host/small_float.h"

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#endif
