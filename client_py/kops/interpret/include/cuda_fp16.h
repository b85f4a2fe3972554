// IEEE half precision.
#ifndef KOPS_HOST_CUDA_FP16_H
#define KOPS_HOST_CUDA_FP16_H

#include "cuda_on_host.h"

#include "kops_host/half.h"

KOPS_HOST_SMALL(__half, __half_raw, kops_host_half_bits, kops_host_half_value)
KOPS_HOST_PAIR(__half, __half2, __half2_raw)

#define KOPS_HOST_H                   __half
#define KOPS_HOST_H2                  __half2
#define KOPS_HOST_NAME(before, after) before##half##after
#define KOPS_HOST_PAIR_NAME           __half2half2
#include "kops_host/small_float.h"

typedef __half half;
typedef __half2 half2;

#endif
