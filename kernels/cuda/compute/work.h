/* Work: how a step's plan is executed, prepared once and issued as often as the job repeats. */
#ifndef KOPS_CUDA_WORK_H
#define KOPS_CUDA_WORK_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "core/plan.h"
#include "ops/launch.h"
#include "util/error.h"

struct blaslt_plan;
struct cuda_device;
struct cuda_kernels;
struct cuda_queue;
struct cuda_repack;
struct tuning_choice;

struct cuda_work {
    /* Set by the caller: the plan, and the device addresses of the operands' first elements. A staged step has its own
     * plan, with the scratch memory's strides. */
    const struct plan *plan;
    uint64_t addresses[STEP_MAX_OPERANDS];

    const char *variant;        /* lives as long as the device */
    struct blaslt_plan *blaslt; /* a reference, or NULL: `function` does the work */
    struct cuda_repack *repack; /* owned, or NULL: a gemm of several launches */
    CUfunction function;        /* an embedded kernel; a user's is in the plan */
    struct cuda_launch launch;
    size_t workspace;  /* bytes that cuBLASLt needs of the queue when the work is issued */
    uint64_t scratch;  /* bytes that copies of operands need of the queue */
    unsigned launches; /* per execution */
    bool early;        /* set by the caller: a user's kernel may begin before the end of its job's kernel before it */

    unsigned char *host; /* the host's end of a transfer, which takes a kernel's place; NULL: a kernel */
    uint64_t host_bytes;
    bool to_device;
};

/* check() of struct backend: reports mistakes before the step is queued. Needs no driver. Thread: any. */
int cuda_check_step(struct backend_device *base, const struct step *step, struct error *e);

/* Takes the variant that tuning chose, or the usual one, and prepares its launch. The plan is not empty, the context
 * current. Each function of this group releases what was prepared before. Thread: any; may block where
 * cuda_work_is_ready() is false. */
int cuda_work_prepare(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work, struct error *e);
/* Prepares the usual variant, whatever tuning chose. */
int cuda_work_prepare_usual(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                            struct error *e);
/* Prepares this choice. Fails where it does not fit the step. May block. */
int cuda_work_prepare_choice(const struct cuda_kernels *k, const struct step *step, const struct tuning_choice *choice,
                             struct cuda_work *work, struct error *e);
/* Prepares a variant without copies of operands. */
int cuda_work_prepare_plain(const struct cuda_kernels *k, const struct step *step, struct cuda_work *work,
                            struct error *e);
/* Prepares one of our own kernels: no copies, no cuBLASLt. Never blocks. */
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

/* Releases what was prepared. Harmless on zeroes and twice. */
void cuda_work_release(struct cuda_work *work);

/* ---- transfers: the op copy between host memory and the device, by the GPU's copy engines ---- */

extern const char cuda_variant_transfer[];

/* Whether the step may be a transfer: a copy of contiguous bytes between host memory and the device. */
bool cuda_transfer_fits(const struct step *step);

/* Whether cuda_transfer_take() will not block. Only where the step fits. */
bool cuda_transfer_is_ready(const struct cuda_device *d, const struct step *step);

/* Makes the work a transfer, if the step fits and its host memory can be registered. Returns 1: done; 0: the work is
 * unchanged; -1: an error. The context is current. */
int cuda_transfer_take(struct cuda_device *d, const struct step *step, struct cuda_work *work, struct error *e);

#endif
