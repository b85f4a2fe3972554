/* Running a job whose tensors lie in shared host memory: copied to scratch memory on the device before the first
 * execution, and back after the last. */
#ifndef KOPS_CUDA_STAGING_H
#define KOPS_CUDA_STAGING_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "ops/launch.h"

struct cuda_device;
struct cuda_stream;

/* One copy to the scratch. */
struct cuda_copy_in {
    const unsigned char *host;
    CUdeviceptr to;
    uint64_t extent;
};

/* One output's way back. */
struct cuda_write_back {
    bool used;
    unsigned char *host; /* contiguous: one copy of `extent` bytes */
    CUdeviceptr from;
    uint64_t extent;
    CUfunction function; /* strided: this kernel writes the elements through the mapping, and nothing between them */
    struct cuda_launch launch;
};

struct cuda_staging {
    bool active;
    CUdeviceptr scratch;                   /* one allocation for all operands, in stream order */
    CUevent h2d_start, h2d_end, d2h_start; /* NULL: nothing copied, or not timed */
    unsigned n_in;
    struct cuda_copy_in in[PLAN_MAX_OPERANDS];
    struct cuda_write_back out[OP_MAX_OUTPUTS];
};

/* Whether an operand of the job lies in host memory. */
bool cuda_staging_is_needed(const struct backend_job *job);

/* Pins the memory, makes the scratch and sets the operands' `addresses` in it (those in device memory are left as they
 * are). Undone on failure. Thread: any; may block. */
int cuda_staging_prepare(struct cuda_stream *stream, const struct backend_job *job, struct cuda_staging *staging,
                         uint64_t *addresses, struct error *e);

/* Enqueues the copies to the device. After a failure some may be on their way. Thread: any; may block. */
int cuda_staging_copy_in(struct cuda_stream *stream, const struct backend_job *job, struct cuda_staging *staging,
                         struct error *e);

/* Enqueues the copies of the outputs to where they belong. Thread: loop. */
int cuda_staging_write_back(struct cuda_stream *stream, const struct backend_job *job, struct cuda_staging *staging,
                            struct error *e);

/* Gives the scratch memory back, in stream order. Once; harmless on zeroes. */
void cuda_staging_free(struct cuda_stream *stream, struct cuda_staging *staging);

/* Gives the events back; the copies have ended or the device is lost. */
void cuda_staging_release(struct cuda_device *d, struct cuda_staging *staging);

#endif
