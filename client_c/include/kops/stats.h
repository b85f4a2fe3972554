/**
 * @file stats.h
 * @brief The daemon's counters, timings and mappings. <kops/kops.h> includes it.
 */
#ifndef KOPS_STATS_H
#define KOPS_STATS_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Filter of the rows; a NULL member matches all. */
struct kops_stats_filter {
    const char *op, *dtype, *device;
    bool reset; /**< Start the rows and counters anew after reading. */
};

struct kops_counter {
    const char *name;
    uint64_t value;
};

/** A distribution in microseconds; NAN: not measured. */
struct kops_spread {
    double min, mean, p50, p90, p99, p999, max; /**< p999: NAN from older daemons. */
};

struct kops_shape {
    unsigned rank;
    int64_t dims[KOPS_MAX_RANK];
};

/** All executions of one op, shape, dtype and kernel on one device. */
struct kops_stats_row {
    const char *op, *device, *variant, *dtype; /**< For a user's kernel: the entry's name, and variant "user", or "here"
                                                    for launches in clients' own contexts. */
    size_t n_shapes;
    const struct kops_shape *shapes; /**< Inputs, then outputs. */
    uint64_t count, errors;
    struct kops_spread queue_us; /**< From ready to run until given to the device; NAN from older daemons. */
    struct kops_spread exec_us; /**< Timed executions: all of the host's; on a GPU those of runs with timing, and one in
                                     61 of the others. */
    struct kops_spread total_us;
    int64_t uid;          /**< The user of the runs; -1: the daemon does not say. */
    int64_t bytes;        /**< Bytes of every tensor of one execution, each tensor once; -1: not known. */
    int64_t operations;   /**< Floating-point operations of one execution, as the op declares them; -1: not known (a
                               user's kernel, an older daemon). */
    const char *identity; /**< Name of the identity that `uid` stands for; "": `uid` is a user. */
};

/** A mapping in the daemon's registry. */
struct kops_mapping {
    const char *kind, *device; /**< device: NULL for a memfd */
    uint64_t size, users;
    bool open; /**< Mapped at present; a closed mapping does not pin memory. */
    double idle_s;
    size_t n_pids;
    const int64_t *pids;
};

/** A process that does GPU work for the daemon. */
struct kops_executor {
    int64_t pid;
    const char *state; /**< "starting", "spare" (ready, and serves nobody yet), "serving" or "ending". */
    /** Domain whose jobs the process runs: "common", "user" or "connection"; NULL: not decided yet. */
    const char *domain;
    int64_t uid;         /**< The domain's user; -1: none, or of a connection that is closed. */
    uint64_t connection; /**< The domain's connection; 0: none. */
    int64_t client_pid;  /**< The process that has that connection; 0: none, or not known. */
    uint64_t jobs;       /**< Jobs in the process now. */
    double uptime_s;
    double device_us;     /**< Time in which the process had work on a GPU. */
    const char *identity; /**< Name of the domain's identity, whose `uid` is a number of the daemon's own; "": none. */
};

/** Every list is NULL-terminated. */
struct kops_stats {
    double uptime_s;
    const struct kops_counter *const *counters;
    const struct kops_stats_row *const *rows;
    const struct kops_mapping *const *mappings;
    const struct kops_counter *const *kernels;    /**< Counters of users' kernels: compiles, cache hits, launches … */
    const struct kops_executor *const *executors; /**< Empty: no GPU, or an older daemon without executors. */
    const struct kops_counter *const *executor_counts; /**< Counters since the daemon's start: started, replaced … */
};

/** Reads the daemon's counters and timings. `filter` may be NULL. Free the result with kops_stats_free(). */
KOPS_API enum kops_code kops_stats_get(kops_client *client, const struct kops_stats_filter *filter,
                                       struct kops_stats **ret_stats, struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_stats *kops_stats_free(struct kops_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
