/* One execution of a step's plan, prepared once and issued as often as the job repeats. */
#ifndef KOPS_CUDA_WORK_H
#define KOPS_CUDA_WORK_H

#include <cuda.h>
#include <stdbool.h>

#include "backend/backend.h"
#include "ops/launch.h"

struct blaslt_plan;
struct cuda_device;
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
    size_t workspace;  /* bytes that the queue must have before the work is issued: for cuBLASLt, … */
    uint64_t scratch;  /* … and for copies of operands */
    unsigned launches; /* of one execution */
    bool early; /* set by the caller: a user's kernel that may begin before the one before it in its job has ended */

    unsigned char *host; /* a transfer from or to here in place of a kernel; NULL: none */
    uint64_t host_bytes;
    bool to_device;
};

/* check() of struct backend: the client hears of a mistake before the step is queued. Needs no driver. Thread: any. */
int cuda_check_step(struct backend_device *base, const struct step *step, struct error *e);

/* Chooses the variant and prepares its launch: what tuning has chosen, or the usual variant. The plan is not empty, the
 * context current. Each of these functions releases what was prepared before. Thread: any; may block where
 * cuda_work_is_ready() says no. */
int cuda_work_prepare(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work, struct error *e);
/* Without a look at what tuning has chosen. */
int cuda_work_prepare_usual(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                            struct error *e);
/* With this choice, or an error where it does not fit the step. May block. */
int cuda_work_prepare_choice(const struct cuda_kernels *k, const struct step *step, const struct tuning_choice *choice,
                             struct cuda_work *work, struct error *e);
/* Without copies of operands. */
int cuda_work_prepare_plain(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                            struct error *e);
/* Without copies and without cuBLASLt. Never blocks. */
int cuda_work_prepare_own(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                          struct error *e);
/* Whether cuda_work_prepare() will not block. */
bool cuda_work_is_ready(const struct cuda_kernels *k, const struct step *step, const uint64_t *addresses);

/* Whether one of our own kernels does the prepared work. */
static inline bool cuda_work_is_embedded(const struct cuda_work *work)
{
    return work->variant && !work->blaslt && !work->repack && !work->host && work->plan->kind != PLAN_KERNEL;
}

/* Enqueues one execution. Thread: loop. */
int cuda_work_issue(const struct cuda_queue *q, struct cuda_work *work, struct error *e);

/* Gives back what cuda_work_prepare() took. Harmless on zeroes and twice. */
void cuda_work_release(struct cuda_work *work);

/* ---- transfers: the op copy between host memory and the device, by the GPU's copy engines ---- */

extern const char cuda_variant_transfer[];

/* Whether the step may be a transfer: it copies between contiguous bytes in host memory and as many on the device. */
bool cuda_transfer_fits(const struct step *step);

/* Whether cuda_transfer_take() will not block. Only where the step fits. */
bool cuda_transfer_is_ready(const struct cuda_device *d, const struct step *step);

/* Makes the work a transfer, where the step fits and its host memory can be registered. 1: it is one; 0: the work is as
 * it was; -1: an error. The context is current. */
int cuda_transfer_take(struct cuda_device *d, const struct step *step, struct cuda_work *work, struct error *e);

#endif
