/* One GPU: its primary context and everything made in it.
 *
 * A struct cuda_device lives from cuda_open() to cuda_close(). What is under "loop" is touched on the loop thread
 * only; the rest is fixed after open, atomic, or guarded by the lock named beside it. */
#ifndef KOPS_CUDA_DEVICE_H
#define KOPS_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "backend/backend.h"
#include "core/kernel.h"
#include "driver.h"
#include "events.h"
#include "flags.h"
#include "kernels.h"
#include "ops/launch.h"
#include "util/list.h"
#include "variants.h"

struct blaslt;
struct cuda_waiters;

struct cuda_device {
    struct backend_device base; /* first: the server's view */
    struct backend_host host;
    CUdevice ordinal;
    CUcontext context; /* primary, retained */
    atomic_int fault;  /* the sticky CUresult that broke the context, or 0 */

    struct cuda_kernels kernels;
    struct cuda_launch_device launch; /* what launchers ask about this device */
    struct cuda_variants variants;
    struct kernel_limits limits; /* of users' kernels */
    struct blaslt *blaslt;       /* NULL: no cuBLASLt here */
    uint64_t workspace_bytes;

    CUmemoryPool pool; /* scratch in stream order; NULL where the device has no pools */
    CUstream service;  /* for work outside jobs: zeroing new memory */
    bool registers_read_only;
    int priorities[PRIORITY_COUNT]; /* the driver's numbers */

    pthread_mutex_t capture_lock;
    CUstream capture; /* under capture_lock while graphs are recorded; never has work of jobs */

    struct cuda_events events; /* its own lock */
    pthread_mutex_t job_lock;  /* free_jobs */
    struct list free_jobs;     /* struct cuda_job */
    struct cuda_waiters *waiters;

    /* loop */
    struct list busy;                         /* struct cuda_stream with unfinished jobs */
    struct list idle_streams[PRIORITY_COUNT]; /* struct cuda_stream, for the next connection */
    unsigned idle_stream_count[PRIORITY_COUNT];
    struct cuda_flags flags;
    uint64_t health_checked_ns;
    unsigned looks;                  /* at busy streams; telling the time at each would cost more than looking */
    uint64_t progress_ns;            /* when an execution was last seen to have ended, or work came */
    bool told_of_naps;               /* the driver refused an event to sleep on, and the log has it */
    bool abandoned;                  /* work on it may never end: the driver is left alone from now on */
    struct error abandoned_why;      /* for the jobs in flight then; no code: they were told */
    struct cuda_device *left_behind; /* by close(): the next one of a list that nobody reads */
    unsigned unfinished;             /* jobs submitted whose done() was not called */
    unsigned workspaces_held;        /* streams that hold a workspace */
};

static inline struct cuda_device *cuda_device(struct backend_device *base)
{
    return (struct cuda_device *)(void *)base;
}

int cuda_open(const struct backend_config *config, const struct backend_host *host, struct backend_device **ret_devices,
              unsigned max, unsigned *ret_count, struct error *e);
void cuda_close(struct backend_device *base);

/* Makes the device's context current in the calling thread. Error: device_lost. */
int cuda_enter(struct cuda_device *d, struct error *e);

int cuda_memory_free(struct backend_device *base, uint64_t *ret_bytes);

/* Any thread: notes a sticky fault and makes the loop poll, which then fails what is in flight. */
void cuda_device_break(struct cuda_device *d, CUresult result);

static inline bool cuda_device_is_broken(const struct cuda_device *d)
{
    return atomic_load_explicit(&d->fault, memory_order_relaxed) != 0;
}

/* Fills `e` with device_lost for a broken device; returns -1. */
int cuda_device_lost(const struct cuda_device *d, struct error *e);

#endif
