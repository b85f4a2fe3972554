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

/** What the events with this `kind` did. */
struct kops_trace_kind {
    uint64_t kind;
    const char *what;   /**< "run", "launch", "sequence", "run_program" (the method of the request) or "compile". */
    const char *op;     /**< The op or kernel; of several ops the first one; of a compilation its first kernel, "" where
                             that failed. */
    uint64_t ops;       /**< How many ops one execution has; 0 of a compilation. */
    const char *device; /**< UUID of the device that did the work; "" of a compilation. */
    const char *variant; /**< The kernel that was chosen; "" where there are several ops, or none. */
    const char *dtype;   /**< Of the first tensor; "" where there is none. */
    size_t n_shapes;
    const struct kops_shape *shapes; /**< Inputs, then outputs, of the first op. */
};

/** A connection whose work is in the trace. */
struct kops_trace_client {
    uint64_t client;  /**< No other connection of this daemon has the same number. */
    int64_t pid, uid; /**< As in struct kops_client_info. */
    const char *name; /**< The name that the client gave, see kops_connect_options.name; "": none. Nobody checks it. */
    const char *comm; /**< Its process's name; "" where that could not be read. */
    const char *identity; /**< Then `uid` is a number of the daemon's own; "": of a user. */
};

/** One run or one compilation. Times are since the trace's origin; 0: there is none, such as of the start of a run that
 * failed before. */
struct kops_trace_event {
    uint64_t kind;     /**< Of one of `kinds`, of this reply or of an earlier one. 0: one of more kinds than the daemon
                            tells apart. */
    uint64_t client;   /**< Of one of `clients`, of this reply or of an earlier one. The daemon describes some thousand
                            connections of a trace; the events of others name a number that nothing describes. */
    uint64_t call;     /**< The request's msgid. */
    uint64_t stream;   /**< Of the client; 0 of a compilation. */
    uint64_t received; /**< The daemon had decoded the request. 1: before the trace began. */
    uint64_t ready;    /**< All memory that the request needs was open. */
    uint64_t started;  /**< A device got the first work; the compiler began, 0 where the binary was cached. */
    uint64_t ended;    /**< The daemon saw the end. */
    uint64_t busy;     /**< The device's own time for all executions together; 0: not measured. */
    uint64_t executions; /**< Without warmup. */
    bool failed;         /**< It was answered with an error. */
    uint64_t began;      /**< The first timed execution began on the device; 0: not known. */
    uint64_t finished;   /**< The last one ended there; 0: not known. */
};

/** The events since the last reply. `kinds` and `clients` are NULL-terminated, and have only entries that no earlier
 * reply had. */
struct kops_trace {
    bool recording;     /**< More will be recorded. */
    uint64_t origin_ns; /**< CLOCK_MONOTONIC when the recording began. */
    uint64_t now_ns;    /**< When the reply was made, since the origin. */
    uint64_t dropped;   /**< Events since the beginning for which there was no room. */
    uint64_t pending;   /**< Events that ended, and that a later call returns: the driver's record of their kernels is
                             still to come. After the end of the trace read on until it is 0; it takes 0.2 s at most. */
    const struct kops_trace_kind *const *kinds;
    const struct kops_trace_client *const *clients;
    size_t n_events;
    const struct kops_trace_event *events; /**< In the order in which they ended. */
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
