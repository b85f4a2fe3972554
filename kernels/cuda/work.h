/* One execution of a step's plan, prepared once and issued as often as the job repeats. */
#ifndef KOPS_CUDA_WORK_H
#define KOPS_CUDA_WORK_H

#include <cuda.h>
#include <stdbool.h>

#include "backend/backend.h"
#include "ops/launch.h"

struct blaslt_plan;
struct cuda_device;
struct cuda_stream;

struct cuda_work {
    /* Set by the caller: what is computed, and on which device addresses (of the operands' first elements). A staged
     * step's plan is its own, with the scratch memory's strides. */
    const struct plan *plan;
    uint64_t addresses[STEP_MAX_OPERANDS];

    const char *variant;        /* lives as long as the device */
    struct blaslt_plan *blaslt; /* a reference, or NULL: our own kernel */
    CUfunction function;
    struct cuda_launch launch;
};

/* The operands' places in device memory, as `d` sees them; 0 for those that have none. */
void cuda_step_addresses(const struct cuda_device *d, const struct backend_step *step,
                         uint64_t addresses[STEP_MAX_OPERANDS]);

/* Chooses the variant and prepares its launch; the plan is not empty, the context current.
 * Thread: any; it may block when cuda_work_is_ready() says no. */
int cuda_work_prepare(struct cuda_device *d, const struct backend_step *step, struct cuda_work *work, struct error *e);

/* The same with our own kernels alone; releases what was prepared before. Never blocks. */
int cuda_work_prepare_own(struct cuda_device *d, const struct backend_step *step, struct cuda_work *work,
                          struct error *e);

/* Whether cuda_work_prepare() will not block. */
bool cuda_work_is_ready(struct cuda_device *d, const struct backend_step *step, const uint64_t *addresses);

/* Enqueues one execution. Thread: loop. */
int cuda_work_issue(struct cuda_stream *stream, struct cuda_work *work, struct error *e);

/* Gives back what prepare() took; harmless on zeroes and twice. */
void cuda_work_release(struct cuda_work *work);

#endif
