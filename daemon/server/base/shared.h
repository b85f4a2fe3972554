/* struct server: the state that every room of the server uses. Each room keeps its own state behind a pointer, in its
 * room.h, and offers functions to the rooms above it:
 *
 *     account ← base ← peer ← memory ← code ← exec ← observe ← tune ← control
 *
 * A room knows those to its left. It calls a room to its right through a table of functions only, and control/ fills
 * these in: the methods (peer/request.h), the parts of a connection (peer/connection.h), the end of a run (exec/run.h).
 * Thread: everything here is the loop's, unless its comment says otherwise. */
#ifndef KOPS_SERVER_BASE_SHARED_H
#define KOPS_SERVER_BASE_SHARED_H

#include <stdatomic.h>
#include <sys/types.h>
#include <uv.h>

#include "backend/backend.h"
#include "backend/mapping.h"
#include "core/tensor.h"
#include "proto/generated/methods.h"
#include "rpc/value.h"
#include "server/account/account.h"
#include "server/account/host_room.h"
#include "server/account/schedule.h"
#include "server/base/config.h"
#include "util/list.h"

enum method {
#define X(NAME, name, CLASS) METHOD_##NAME,
    KOPS_METHODS(X)
#undef X
        METHOD_COUNT
};

enum { ERROR_CODES_MAX = 128 /* every error code of the daemon is below */ };

/* Counters that only grow, which are keys of `counters` in `stats`: proto/results.json. */
#define SERVER_COUNTERS(X)                                                                                             \
    X(connections_total)                                                                                               \
    X(requests) X(replies) X(errors) X(jobs) X(jobs_cancelled) X(bytes_in) X(bytes_out) X(protocol_errors)

/* `stats` subtracts their values at the last reset. */
struct server_counters {
#define X(name) uint64_t name;
    SERVER_COUNTERS(X)
#undef X
    uint64_t launches;
};

/* Counters for `metrics` only. */
struct server_totals {
    uint64_t requests[METHOD_COUNT + 1]; /* the last one: unknown methods */
    uint64_t errors[ERROR_CODES_MAX];
    uint64_t faults;      /* faults of devices and of memory; each has a line in the log */
    uint64_t turned_away; /* connections, for want of descriptors or room for another one */
    uint64_t dropped_readers,
        dropped_senders; /* connections whose client did not read its replies, or did not send the rest of a message */
    double device_us[BACKEND_MAX_DEVICES];
};

/* Whether the daemon takes new work. control/ writes all but `work`. */
struct admission {
    bool draining;  /* work is refused */
    bool stopping;  /* the daemon ends: work is refused, and no more input is read */
    bool cancelled; /* … and the shutdown no longer waits for running work, or for clients that do not read */
    unsigned work;  /* requests in flight that are work (the method's flag); a drain waits for them */
};

/* The daemon's state, and its name on the wire. */
enum server_state { STATE_SERVING, STATE_DRAINING, STATE_STOPPING, STATE_COUNT };
extern const char *const server_state_names[STATE_COUNT];

/* Activity: the request that the loop carries out, for the watchdog's thread, which may not touch the loop's objects
 * and must say in the log where a blocked loop stands. The loop alone writes, with one relaxed store a word. A reader
 * gets a consistent picture only while the loop stands still, which is when it reads. */
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

struct server {
    struct server_config config;
    struct server_hooks hooks;
    uv_loop_t loop;
    uv_async_t wake;
    bool woken;  /* a device has called server_wake() since the loop last turned */
    bool active; /* a request or completion has come since the busy poll last looked */
    struct admission admission;
    struct device_set devices;
    struct mapping_registry mappings;
    struct accounts accounts;
    struct schedule schedule; /* connections with output to flush, input to take or requests to answer */
    struct trimming trimming;
    struct host_room host_room;
    struct activity activity; /* the watchdog's thread reads it */
    struct server_counters counters;
    struct server_totals totals;
    uint64_t started_ns;
    double started_s;          /* since 1970 */
    char instance[2 * 16 + 1]; /* differs for each start of the daemon */

    struct peers *peers;
    struct modules *modules;
    struct exec *exec;
    struct observe *observe;
    struct tune *tune;
    struct control *control;
};

/* Wakes the loop and has every device polled: for struct backend_host. Any thread; `context` is the server. */
void server_wake(void *context);

static inline enum server_state server_state(const struct server *s)
{
    return s->admission.stopping ? STATE_STOPPING : s->admission.draining ? STATE_DRAINING : STATE_SERVING;
}

/* The device named by a `device` argument; the default device when absent. NULL and *e: there is no such device. */
struct backend_device *server_device(const struct server *s, const struct rpc_arg *arg, struct error *e);

#endif
