/* Activity: the request that the loop carries out, for the watchdog's thread, which may not touch the loop's objects
 * and must say in the log where a blocked loop stands. The loop alone writes, with one relaxed store a word. A reader
 * gets a consistent picture only while the loop stands still, which is when it reads. */
#ifndef KOPS_SERVER_BASE_ACTIVITY_H
#define KOPS_SERVER_BASE_ACTIVITY_H

#include <stdatomic.h>
#include <sys/types.h>

struct activity {
    _Atomic(const char *) what; /* the method, a string of a table; NULL: none */
    atomic_int pid;
    atomic_uint uid; /* or an identity's number */
};

#define activity_store(at, value) atomic_store_explicit((at), (value), memory_order_relaxed)
#define activity_load(at)         atomic_load_explicit((at), memory_order_relaxed)

static inline void activity_begin(struct activity *a, const char *what, pid_t pid, uid_t uid)
{
    activity_store(&a->what, what);
    activity_store(&a->pid, (int)pid);
    activity_store(&a->uid, (unsigned)uid);
}

static inline void activity_end(struct activity *a)
{
    activity_store(&a->what, NULL);
}

#endif
