/* Running a step whose tensors lie in shared host memory: copied to scratch memory on the device, and back. */
#ifndef KOPS_CUDA_STAGING_H
#define KOPS_CUDA_STAGING_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "ops/launch.h"

struct cuda_device;
struct cuda_stream;

/* One operand's way to the scratch, or back: the bytes as they are, or, where only some of them are meant, a kernel
 * that moves the elements through the mapping. */
struct cuda_transfer {
    unsigned char *host; /* `extent` bytes here … */
    CUdeviceptr device;  /* … and there; unused with a kernel */
    uint64_t extent;
    CUfunction function; /* NULL: plain bytes */
    struct cuda_launch *launch;
};

/* Those of ops may move elements; users' kernels have more operands, but their whole extents. */
enum { STAGING_LAUNCHES = PLAN_MAX_OPERANDS + OP_MAX_OUTPUTS };

struct cuda_staging { /* does not move once it is prepared */
    bool active;
    CUdeviceptr scratch;                   /* one allocation for all operands, in stream order */
    CUevent h2d_start, h2d_end, d2h_start; /* NULL: nothing copied, or not timed */
    unsigned n_in, n_out;
    struct cuda_transfer in[STEP_MAX_OPERANDS], out[STEP_MAX_OPERANDS];
    unsigned n_launches;
    struct cuda_launch launches[STAGING_LAUNCHES];
};

/* Whether an operand of the step lies in host memory. */
bool cuda_staging_is_needed(const struct backend_step *step);

/* Pins the memory, makes the scratch, and rewrites the operands' `addresses` and the `plan`'s strides to what they are
 * there (those in device memory are left as they are). Undone on failure. Thread: any; may block. */
int cuda_staging_prepare(struct cuda_stream *stream, const struct backend_step *step, struct cuda_staging *staging,
                         struct plan *plan, uint64_t *addresses, struct error *e);

/* Memory for copies, freed in the stream's order. *e says so where the device has none to give that way. */
int cuda_staging_scratch(struct cuda_stream *stream, uint64_t bytes, CUdeviceptr *ret, struct error *e);

/* The same for a user's kernel, whose plan knows no strides: operands keep their layout. */
int cuda_staging_prepare_kernel(struct cuda_stream *stream, const struct backend_step *step,
                                struct cuda_staging *staging, uint64_t *addresses, struct error *e);

/* Enqueues the copies to the device. After a failure some may be on their way. Thread: any; may block. */
int cuda_staging_copy_in(struct cuda_stream *stream, struct cuda_staging *staging, bool timing, struct error *e);

/* Enqueues the copies of the outputs to where they belong. Thread: loop. */
int cuda_staging_write_back(struct cuda_stream *stream, struct cuda_staging *staging, bool timing, struct error *e);

/* Gives the scratch memory back, in stream order. Once; harmless on zeroes. */
void cuda_staging_free(struct cuda_stream *stream, struct cuda_staging *staging);

/* Gives the events back; the copies have ended or the device is lost. */
void cuda_staging_release(struct cuda_device *d, struct cuda_staging *staging);

#endif
