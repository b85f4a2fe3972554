/* Runs a step whose tensors lie in shared host memory: copied to scratch memory on the device, and back. */
#ifndef KOPS_CUDA_STAGING_H
#define KOPS_CUDA_STAGING_H

#include "driver/device.h"
#include "ops/launch.h"

struct cuda_embedded;

/* One operand's transfer to the scratch memory, or back: its bytes, or a kernel that moves its elements through the
 * mapping, where they are only some of the bytes. */
struct cuda_transfer {
    unsigned char *host; /* `extent` bytes here … */
    CUdeviceptr mapped;  /* the same for kernels; 0: the memory is not registered */
    CUdeviceptr device;  /* … and there; unused with a kernel */
    uint64_t extent;
    CUfunction function; /* NULL: plain bytes */
    struct cuda_launch *launch;
};

/* All transfers of one direction in a single launch. */
struct cuda_move {
    CUfunction function; /* NULL: they are made one by one */
    struct cuda_launch launch;
};

/* Small memory of a queue: enough for any light step. */
enum { STAGING_SMALL_BYTES = 128 << 10 };

/* Only operands of ops are moved by elements: users' kernels have more operands. */
enum { STAGING_LAUNCHES = PLAN_MAX_OPERANDS + OP_MAX_OUTPUTS };

struct cuda_staging {                      /* does not move once it is prepared */
    CUdeviceptr scratch;                   /* one allocation for all operands; 0: they are in small memory */
    CUevent h2d_start, h2d_end, d2h_start; /* NULL: nothing copied, or not timed */
    unsigned n_in, n_out;
    struct cuda_transfer in[STEP_MAX_OPERANDS], out[STEP_MAX_OPERANDS];
    struct cuda_move move_in, move_out;
    unsigned n_launches;
    struct cuda_launch launches[STAGING_LAUNCHES];
};

/* Whether the loop may prepare the step and enqueue its copies: it has few bytes of host memory, all registered, and
 * needs neither cuBLASLt nor a repack. Thread: any. */
bool cuda_staging_is_light(const struct cuda_device *d, const struct step *step);

/* Registers the memory, allocates the scratch memory, and rewrites `addresses` and the strides of `plan` for operands
 * that are staged there. Undone on failure. Thread: any; may block, unless the step is light. */
int cuda_staging_prepare(const struct cuda_embedded *kernels, const struct cuda_queue *q, const struct step *step,
                         struct cuda_staging *staging, struct plan *plan, uint64_t *addresses, struct error *e);

/* Whether all copies to the device are one launch, which does not block. */
static inline bool cuda_staging_is_quick(const struct cuda_staging *staging)
{
    return staging->move_in.function || !staging->n_in;
}

/* Enqueues the copies to the device. After a failure some may be on their way. Thread: any; may block, unless they are
 * quick. */
int cuda_staging_copy_in(const struct cuda_queue *q, struct cuda_staging *staging, bool timing, struct error *e);

/* Enqueues the copies of the outputs to host memory. Thread: loop. */
int cuda_staging_write_back(const struct cuda_queue *q, struct cuda_staging *staging, bool timing, struct error *e);

/* Frees the scratch memory, in the order of the queue. Harmless on zeroes and twice. */
void cuda_staging_free(const struct cuda_queue *q, struct cuda_staging *staging);

/* Returns the events. The copies have ended, or the device is lost. */
void cuda_staging_release(struct cuda_device *d, struct cuda_staging *staging);

#endif
