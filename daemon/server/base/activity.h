/* Activity: the work of the loop and of the devices, for the watchdog's thread, which may not touch the loop's objects
 * and must say in the log where a blocked loop stands. The loop alone writes, with one relaxed store a word. A reader
 * gets a consistent picture only while the loop stands still, which is when it reads. */
#ifndef KOPS_SERVER_BASE_ACTIVITY_H
#define KOPS_SERVER_BASE_ACTIVITY_H

#include <stdatomic.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "core/tensor.h"

/* The method or op, and its client. */
struct activity_owner {
    _Atomic(const char *) what; /* a string of a table; NULL: nothing */
    atomic_int pid;
    atomic_uint uid; /* or an identity's number */
};

enum { ACTIVITY_NO_DTYPE = 255 }; /* the op has no tensor */

/* A device's job: its first op, and that op's first tensor. */
struct activity_job {
    struct activity_owner owner;
    atomic_uint n_ops, dtype, rank;
    _Atomic int64_t shape[TENSOR_MAX_RANK];
};

struct activity {
    struct activity_owner request; /* being dispatched or submitted */
    atomic_uint device;            /* the index plus one of the device whose backend was called; 0: none */
    struct activity_job oldest[BACKEND_MAX_DEVICES]; /* the oldest job on each device */
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

/* The saved words around the submission of a job. */
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

/* Call it before other calls of a device's backend. Returns the argument for activity_leave(). Calls nest. */
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
