/**
 * @file trace.h
 * @brief Recording when each run and each compilation was received, ready, started and ended. <kops/kops.h> includes
 * it.
 *
 * A client records one trace at a time: kops_trace_begin() starts it, and each kops_trace_read() returns the events
 * since the read before. Every function may be called from any thread; two threads that read share the events between
 * them. Times are in nanoseconds. A daemon that is older than traces answers unsupported, whose message says so.
 */
#ifndef KOPS_TRACE_H
#define KOPS_TRACE_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The way to record. Zero: the work of the client's own user, with the daemon's default room. */
struct kops_trace_options {
    bool everybody;  /**< The work of all users; for administrators. */
    uint64_t events; /**< Events that the daemon keeps until they are read; it drops later ones, and counts them. 0: the
                          daemon's default, 16384. */
    uint64_t reserved[4];
};

/** Description of all events with this `kind`. */
struct kops_trace_kind {
    uint64_t kind;
    const char *what; /**< "run", "launch", "sequence", "run_program" (the method of the request) or "compile". */
    const char *op;   /**< The op or kernel; for several ops the first one; for a compilation its first kernel, "" where
                           that failed. */
    uint64_t ops;     /**< Ops of one execution; 0 for a compilation. */
    const char *device;  /**< UUID of the device that did the work; "" for a compilation. */
    const char *variant; /**< The kernel that was chosen; "" where there are several ops, or none. */
    const char *dtype;   /**< Type of the first tensor; "" where there is none. */
    size_t n_shapes;
    const struct kops_shape *shapes; /**< Inputs, then outputs, of the first op. */
};

/** A connection whose work is in the trace. */
struct kops_trace_client {
    uint64_t client;  /**< Number of the connection, unique within this daemon. */
    int64_t pid, uid; /**< As in struct kops_client_info. */
    /** Name that the client gave itself, see kops_connect_options.name; "": none. Not to be trusted. */
    const char *name;
    const char *comm;     /**< Name of the client's process; "" where that could not be read. */
    const char *identity; /**< Name of the identity that `uid` stands for; "": `uid` is a user. */
};

/** A run or a compilation. Times count from the trace's origin; 0: no such time, such as the start of a run that failed
 * before. */
struct kops_trace_event {
    uint64_t kind;     /**< Key into the `kinds` of this reply or of earlier ones. 0: an event beyond the kinds that the
                            daemon tells apart. */
    uint64_t client;   /**< Key into the `clients` of this reply or of earlier ones. The daemon describes some thousand
                            connections of a trace; a later connection's number has no entry. */
    uint64_t call;     /**< The request's msgid. */
    uint64_t stream;   /**< Stream number of the client; 0 for a compilation. */
    uint64_t received; /**< Time when the daemon had decoded the request. 1: before the trace began. */
    uint64_t ready;    /**< Time when all memory that the request needs was open. */
    /** Time when a device got the first work, or the compiler began; 0 where the binary was cached. */
    uint64_t started;
    uint64_t ended;      /**< Time when the daemon saw the end. */
    uint64_t busy;       /**< The device's own time for all executions together; 0: not measured. */
    uint64_t executions; /**< Executions without warm-up. */
    bool failed;         /**< The reply was an error. */
    uint64_t began;      /**< Time when the first timed execution began on the device; 0: not known. */
    uint64_t finished;   /**< Time when the last execution ended on the device; 0: not known. */
};

/** The events since the last reply. `kinds` and `clients` are NULL-terminated, and have only entries that no earlier
 * reply had. */
struct kops_trace {
    bool recording;     /**< More will be recorded. */
    uint64_t origin_ns; /**< CLOCK_MONOTONIC when the recording began. */
    uint64_t now_ns;    /**< Time of the reply, since the origin. */
    uint64_t dropped;   /**< Events dropped for want of room, since the recording began. */
    uint64_t pending;   /**< Events that have ended but wait for the driver's records of their kernels; a later call
                             returns them. After the end of the trace, read on until this is 0; it takes 0.2 s at
                             most. */
    const struct kops_trace_kind *const *kinds;
    const struct kops_trace_client *const *clients;
    size_t n_events;
    const struct kops_trace_event *events; /**< Events in the order of their ends. */
};

/** Records from now on, until kops_trace_read() ends it or the connection ends. An earlier trace of the client
 * ends, and its unread events are lost. `options` may be NULL. The call fails when the connection is lost meanwhile.
 *
 * Errors: permission_denied (`everybody`), quota_exceeded (too many traces at a time, or too many events), out_of_range
 * (`events`), unsupported, those of a connection. */
KOPS_API enum kops_code kops_trace_begin(kops_client *client, const struct kops_trace_options *options,
                                         struct kops_error *ret_error);

/** Returns the events since the last call. With `end` the recording ends first. Free the result with
 * kops_trace_free().
 *
 * A trace belongs to the connection that began it. When that one has ended, the events that were not read are lost:
 * every call fails with connection_lost until another kops_trace_begin(), also where the client has reached a daemon
 * again. A call that fails with timeout or bad_reply has lost the events of its reply; the recording goes on.
 *
 * Errors: connection_lost, timeout, bad_reply, no_memory, bad_argument (the client has begun no trace). */
KOPS_API enum kops_code kops_trace_read(kops_client *client, bool end, struct kops_trace **ret_trace,
                                        struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_trace *kops_trace_free(struct kops_trace *trace);

#ifdef __cplusplus
}
#endif

#endif
