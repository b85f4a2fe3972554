/* What the loop is doing and what devices work on, for a thread that may not touch the loop's objects: the watchdog,
 * which is to say what holds a loop that does not turn. Written by the loop alone, one relaxed store a word; a reader
 * gets a whole picture only while the loop stands still, which is when it is looked at. */
#ifndef KOPS_SERVER_BASE_ACTIVITY_H
#define KOPS_SERVER_BASE_ACTIVITY_H

#include <stdatomic.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "core/tensor.h"

/* Whose it is. */
struct activity_owner {
    _Atomic(const char *) what; /* a method or an op, a string of a table; NULL: nothing */
    atomic_int pid;
    atomic_uint uid;
};

enum { ACTIVITY_NO_DTYPE = 255 }; /* it has no tensor */

/* What a device works on: the first op of a job, and that one's first tensor. */
struct activity_job {
    struct activity_owner owner;
    atomic_uint n_ops, dtype, rank;
    _Atomic int64_t shape[TENSOR_MAX_RANK];
};

struct activity {
    struct activity_owner request;                   /* being dispatched or submitted */
    atomic_uint device;                              /* the index plus one of that whose backend was called; 0: none */
    struct activity_job oldest[BACKEND_MAX_DEVICES]; /* of the jobs on a device */
};

#define activity_store(at, value) atomic_store_explicit((at), (value), memory_order_relaxed)
#define activity_load(at)         atomic_load_explicit((at), memory_order_relaxed)

static inline void activity_own(struct activity_owner *o, const char *what, pid_t pid, uid_t uid)
{
    activity_store(&o->what, what);
    activity_store(&o->pid, (int)pid);
    activity_store(&o->uid, (unsigned)uid);
}

static inline void activity_disown(struct activity_owner *o)
{
    activity_store(&o->what, NULL);
}

/* Around the submission of somebody's job. */
struct activity_before {
    const char *what;
    int pid;
    unsigned uid, device;
};

static inline struct activity_before activity_begin(struct activity *a, const struct backend_device *device,
                                                    const char *what, pid_t pid, uid_t uid)
{
    struct activity_before before = {activity_load(&a->request.what), activity_load(&a->request.pid),
                                     activity_load(&a->request.uid), activity_load(&a->device)};

    activity_own(&a->request, what, pid, uid);
    activity_store(&a->device, device->index + 1);
    return before;
}

static inline void activity_end(struct activity *a, const struct activity_before *before)
{
    activity_own(&a->request, before->what, before->pid, before->uid);
    activity_store(&a->device, before->device);
}

/* Around other calls of a device's backend; returns what activity_leave() is to be given. Calls nest. */
static inline unsigned activity_enter(struct activity *a, const struct backend_device *device)
{
    unsigned before = activity_load(&a->device);

    activity_store(&a->device, device->index + 1);
    return before;
}

static inline void activity_leave(struct activity *a, unsigned before)
{
    activity_store(&a->device, before);
}

#endif
