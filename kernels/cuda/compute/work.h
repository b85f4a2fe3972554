/* One execution of a step's plan, prepared once and issued as often as the job repeats. */
#ifndef KOPS_CUDA_WORK_H
#define KOPS_CUDA_WORK_H

#include <cuda.h>
#include <stdbool.h>

#include "backend/backend.h"
#include "ops/launch.h"

struct blaslt_plan;
struct cuda_kernels;
struct cuda_queue;
struct cuda_repack;
struct tuning_choice;

struct cuda_work {
    /* Set by the caller: the plan, and the device addresses of the operands' first elements. A staged step has a plan
     * of its own, with the scratch memory's strides. */
    const struct plan *plan;
    uint64_t addresses[STEP_MAX_OPERANDS];

    const char *variant;        /* lives as long as the device */
    struct blaslt_plan *blaslt; /* a reference, or NULL: a kernel of `function` */
    struct cuda_repack *repack; /* owned, or NULL: a gemm of several launches */
    CUfunction function;        /* an embedded kernel; a user's is in the plan */
    struct cuda_launch launch;
    bool early; /* set by the caller: a user's kernel that may begin before the one before it in its job has ended */

    unsigned char *host; /* a transfer from or to here in place of a kernel; NULL: none */
    uint64_t host_bytes;
    bool to_device;
};

/* Chooses the variant and prepares its launch; the plan is not empty, the context current.
 * Thread: any; it may block when cuda_work_is_ready() says no. */
int cuda_work_prepare(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work, struct error *e);

/* The same without a look at what tuning has chosen. */
int cuda_work_prepare_usual(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                            struct error *e);

/* The same with what tuning has chosen, or is measuring. May block. An error where the choice does not fit the step. */
int cuda_work_prepare_choice(const struct cuda_kernels *k, const struct step *step, const struct tuning_choice *choice,
                             struct cuda_work *work, struct error *e);

/* The same without copies of operands. Releases what was prepared before. */
int cuda_work_prepare_plain(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                            struct error *e);

/* The same without cuBLASLt, either. Releases what was prepared before. Never blocks. */
int cuda_work_prepare_own(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                          struct error *e);

/* Whether cuda_work_prepare() will not block. */
bool cuda_work_is_ready(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses);

/* Whether one of our own kernels does the prepared work. */
static inline bool cuda_work_is_embedded(const struct cuda_work *work)
{
    return work->variant && !work->blaslt && !work->repack && !work->host && work->plan->kind != PLAN_KERNEL;
}

/* What the queue must have before the work is issued: cuBLASLt's workspace, and scratch memory. */
size_t cuda_work_workspace(const struct cuda_work *work);
uint64_t cuda_work_scratch(const struct cuda_work *work);

/* Launches of one execution. */
unsigned cuda_work_launches(const struct cuda_work *work);

/* Enqueues one execution. Thread: loop. */
int cuda_work_issue(const struct cuda_queue *q, struct cuda_work *work, struct error *e);

/* Gives back the reference of cuda_work_prepare(). Harmless on zeroes and twice. */
void cuda_work_release(struct cuda_work *work);

#endif
