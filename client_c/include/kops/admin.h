/**
 * @file admin.h
 * @brief Requests of administrators: the daemon's clients, its metrics, draining it. <kops/kops.h>
 * includes it.
 *
 * Times are in microseconds where a name ends in `_us` and in a struct kops_quantiles, in seconds where it ends in
 * `_s`; memory is in bytes. Every function may be called from any thread. A daemon that is older than a function
 * answers unsupported, whose message says so.
 */
#ifndef KOPS_ADMIN_H
#define KOPS_ADMIN_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a function and a struct of one name, as C has them */
#endif

/** Value of a limit that does not exist. */
#define KOPS_NO_LIMIT UINT64_MAX

/** A distribution in microseconds. NAN: nothing was measured, `count` is 0. */
struct kops_quantiles {
    uint64_t count;
    double p50, p90, p99, p999, max;
};

/** Where the time of runs went. */
struct kops_latency {
    struct kops_quantiles queue;  /**< From a request's arrival until a device got its work. */
    struct kops_quantiles device; /**< On the device. */
    struct kops_quantiles total;  /**< From a request's arrival until its reply was written. */
};

/** A connection of a client. Counts begin with the connection. */
struct kops_client_info {
    int64_t pid, uid,
        gid; /**< The peer's credentials when it connected; pid is 0 where the daemon cannot see its pid namespace. */
    const char *client;    /**< Name that the client gives itself, see kops_connect_options.name. Not to be trusted. */
    const char *comm;      /**< Name of the client's process when it connected; "" where that could not be read. */
    double connected_s;    /**< Time since the client connected. */
    uint64_t requests;     /**< Requests received. */
    uint64_t errors;       /**< Requests answered with an error. */
    uint64_t inflight;     /**< Requests not answered yet. */
    uint64_t queued;       /**< Runs that no device has yet, counted in `inflight` too. */
    uint64_t buffers;      /**< Buffers that the client registered or allocated. */
    uint64_t mapped_bytes; /**< The client's own memory that the daemon has mapped. */
    uint64_t allocated_bytes; /**< The daemon's memory that the client has allocated. */
    uint64_t programs, kernels;
    uint64_t bytes_in, bytes_out; /**< Received and sent, through the socket or the ring. */
    uint64_t output_bytes;        /**< Replies that the client has not read. */
    bool paused; /**< The daemon does not read the client's requests at present: too many are in flight, or too many
                      replies are unread. */
    bool shm;    /**< Messages go through shared memory. */
    double device_us; /**< Device time that the client's runs took. */
    struct kops_latency latency;
    /** Isolation of the client's kernels, as in kops_info.isolation; "": the daemon does not say. */
    const char *isolation;
    int64_t executor;     /**< Pid of the process that runs the client's kernels; 0: none at present. */
    uint64_t here;        /**< Launches in the client's own CUDA context, as the client reports them. */
    const char *identity; /**< Name of the identity socket that the client connected to. Limits then count for that
                               identity, not for `uid`. "": the daemon's own socket, where limits count for the user. */
};

/** Limits of a user at one time; KOPS_NO_LIMIT: no limit. */
struct kops_user_limits {
    uint64_t connections, buffers, mappings, mapped_bytes, allocated_bytes, host_bytes, program_bytes, waiting_bytes,
        inflight, fds, kernel_bytes;
    uint64_t messages_per_s;
    uint64_t device_share; /**< Percent of one device's time. */
};

/** A user: all connections of one uid, or of one identity, together. */
struct kops_user_info {
    int64_t uid;
    uint64_t connections, buffers;
    uint64_t mappings; /**< Pieces of memory that the daemon knows, open or not. */
    uint64_t mapped_bytes, allocated_bytes;
    uint64_t host_bytes;    /**< Host memory that the daemon has mapped. */
    uint64_t program_bytes; /**< Memory of the user's programs. */
    uint64_t waiting_bytes; /**< Memory of requests and replies that wait. */
    uint64_t inflight, fds;
    uint64_t kernel_bytes; /**< Memory of the user's modules and kernels. */
    uint64_t requests;     /**< Requests since the daemon first saw the user. */
    uint64_t refused;      /**< Requests refused because of a limit. */
    double device_us;
    struct kops_user_limits limits;
    const char *identity; /**< Name of the identity that `uid` stands for; "": `uid` is a user. */
};

/** Conditions that a device's speed depends on, read at one time. NAN: the device does not tell. */
struct kops_conditions {
    const char *missing; /**< Reason why nothing is known; "": something is known. */
    double clock_mhz;    /**< Clock of a GPU's multiprocessors, or of the host's fastest processor. */
    double clock_max_mhz, memory_clock_mhz, memory_clock_max_mhz;
    double temperature_c, power_w, power_limit_w;
    double power_slowed_us,
        thermal_slowed_us; /**< Time that the clocks were kept down by power and by heat, since the driver's start. */
    const char *const *reasons; /**< Why the clocks are not higher, such as "power_cap"; NULL-terminated. PROTOCOL.md,
                                     Conditions, lists them. */
};

/** How busy a device is. */
struct kops_device_load {
    unsigned index;
    const char *name, *uuid;
    double busy_us;   /**< Time that the device worked for this daemon's clients since the daemon's start. */
    uint64_t running; /**< Jobs on the device. */
    uint64_t memory_total, memory_free; /**< 0 for both: not known. */
    struct kops_conditions conditions;  /**< Read at most once a second. */
};

/** Every list is NULL-terminated. Free it with kops_clients_free(). */
struct kops_clients {
    const struct kops_client_info *const *clients;
    const struct kops_user_info *const *users;
    const struct kops_device_load *const *devices;
    const char *state; /**< "serving", "draining" or "stopping". */
    double uptime_s;
};

/** Every connection, the resources that it holds, and how it is served. Administrators (by default root and the user
 * that the daemon runs as) see everybody, others the connections of their own uid. The result is the caller's.
 *
 * Errors: unsupported, those of a connection. */
KOPS_API enum kops_code kops_clients(kops_client *client, struct kops_clients **ret_clients,
                                     struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_clients *kops_clients_free(struct kops_clients *clients);

/** Clocks, temperature and power of a device, read after the call began: before and after a measurement they say
 * whether the device was slowed meanwhile. `device`: a UUID or a number; NULL: the default device. The result is the
 * caller's.
 *
 * Errors: unsupported, unknown_device, no_memory, those of a connection. */
KOPS_API enum kops_code kops_conditions(kops_client *client, const char *device,
                                        struct kops_conditions **ret_conditions, struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_conditions *kops_conditions_free(struct kops_conditions *conditions);

/** All metrics in Prometheus' text format 0.0.4: a text that the caller frees with kops_metrics_free().
 *
 * Errors: unsupported, no_memory, those of a connection. */
KOPS_API enum kops_code kops_metrics(kops_client *client, char **ret_text, struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API char *kops_metrics_free(char *text);

/** How to drain. Zero: take no new work, and wait for work in flight as long as it takes. */
struct kops_drain_options {
    bool stop;          /**< The daemon ends with status 0 after the drain, also when `timeout_ms` ran out first. */
    bool resume;        /**< Take new work again, at once. Excludes `stop`. */
    int64_t timeout_ms; /**< Longest wait; 0: as long as it takes. */
    uint64_t reserved[4];
};

/** Work and connections that are left when a drain returns. */
struct kops_drain_result {
    bool drained;         /**< No job is in flight. */
    uint64_t jobs;        /**< Jobs in flight. */
    uint64_t connections; /**< Open connections, this one included. */
};

/** Lets the daemon take no new work. Requests for work are answered shutting_down until the daemon is resumed or
 * started anew; with `stop` it ends. Returns when no job is in flight any more, or when the time is over:
 * `ret_result->drained` says which. The client's own timeout does not apply. `options` and `ret_result` may be NULL. A
 * drain whose connection is lost is not repeated. For administrators.
 *
 * Errors: permission_denied, bad_argument (`stop` with `resume`, a negative time), unsupported, those of a connection.
 */
KOPS_API enum kops_code kops_drain(kops_client *client, const struct kops_drain_options *options,
                                   struct kops_drain_result *ret_result, struct kops_error *ret_error);

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
