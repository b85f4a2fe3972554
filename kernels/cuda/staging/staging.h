/* Staging: a step's operands in shared host memory are copied to scratch memory of the device, and back. */
#ifndef KOPS_CUDA_STAGING_H
#define KOPS_CUDA_STAGING_H

#include "driver/device.h"
#include "ops/launch.h"

struct cuda_embedded;

/* An operand's transfer to the scratch memory or back: a copy of all its bytes, or, where the elements are few of the
 * bytes, a kernel that copies them through the mapping. */
struct cuda_transfer {
    unsigned char *host; /* `extent` bytes in host memory */
    CUdeviceptr mapped;  /* their address for kernels; 0: the memory is not registered */
    CUdeviceptr device;  /* `extent` bytes in scratch memory; unused with a kernel */
    uint64_t extent;
    CUfunction function; /* the kernel; NULL: all bytes are copied */
    struct cuda_launch *launch;
};

/* All transfers of one direction in a single launch. */
struct cuda_move {
    CUfunction function; /* NULL: transfers are enqueued one by one */
    struct cuda_launch launch;
};

/* Bytes of a queue's small memory, enough for any light step. */
enum { STAGING_SMALL_BYTES = 128 << 10 };

/* Operands that may need a kernel: those of ops, which are fewer than those of users' kernels. */
enum { STAGING_LAUNCHES = PLAN_MAX_OPERANDS + OP_MAX_OUTPUTS };

struct cuda_staging {                      /* stays in place once it is prepared */
    CUdeviceptr scratch;                   /* an allocation for all operands; 0: they are in small memory */
    CUevent h2d_start, h2d_end, d2h_start; /* NULL: no copies, or not timed */
    unsigned n_in, n_out;
    struct cuda_transfer in[STEP_MAX_OPERANDS], out[STEP_MAX_OPERANDS];
    struct cuda_move move_in, move_out;
    unsigned n_launches;
    struct cuda_launch launches[STAGING_LAUNCHES];
};

/* Whether the step is light, so that the loop may prepare it and enqueue its copies: it has few bytes in host memory,
 * all registered, and needs neither cuBLASLt nor a repack. Thread: any. */
bool cuda_staging_is_light(const struct cuda_device *d, const struct step *step);

/* Registers the host memory, allocates scratch memory, and rewrites `addresses` and the strides of `plan` for staged
 * operands. A failure frees what was allocated. Thread: any; may block, unless the step is light. */
int cuda_staging_prepare(const struct cuda_embedded *kernels, const struct cuda_queue *q, const struct step *step,
                         struct cuda_staging *staging, struct plan *plan, uint64_t *addresses, struct error *e);

/* Whether all copies to the device are a single launch, which does not block. */
static inline bool cuda_staging_is_quick(const struct cuda_staging *staging)
{
    return staging->move_in.function || !staging->n_in;
}

/* Enqueues the copies to the device. After a failure some may be in flight. Thread: any; may block, unless
 * cuda_staging_is_quick(). */
int cuda_staging_copy_in(const struct cuda_queue *q, struct cuda_staging *staging, bool timing, struct error *e);

/* Enqueues the copies of the outputs to host memory. Thread: loop. */
int cuda_staging_write_back(const struct cuda_queue *q, struct cuda_staging *staging, bool timing, struct error *e);

/* Frees the scratch memory, behind the queue's work. Harmless on zeroes and twice. */
void cuda_staging_free(const struct cuda_queue *q, struct cuda_staging *staging);

/* Returns the events to their pool. The copies have ended, or the device is lost. */
void cuda_staging_release(struct cuda_device *d, struct cuda_staging *staging);

#endif
