/* The host device. backend.c owns it. Constant from open() to close(), except for the executor, which has a lock. */
#ifndef KOPS_HOST_DEVICE_H
#define KOPS_HOST_DEVICE_H

#include "backend/backend.h"
#include "blas.h"
#include "gemm_way.h"
#include "kernels.h"
#include "onednn.h"

struct executor;

struct host_device {
    struct backend_device base; /* first: the server holds pointers to it */
    struct backend_host host;   /* wake may be NULL */
    size_t bypass_bytes;        /* larger results are stored past the caches */
    struct blas blas;
    struct onednn onednn;
    struct gemm_ways gemm;
    const char *elementwise_variants[CPU_ISAS + 1];
    struct executor *executor;
};

#endif
