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

/** In place of a limit that there is not. */
#define KOPS_NO_LIMIT UINT64_MAX

/** A distribution in microseconds. NAN: nothing was measured, `count` is 0. */
struct kops_quantiles {
    uint64_t count;
    double p50, p90, p99, p999, max;
};

/** Where the time of runs went. */
struct kops_latency {
    struct kops_quantiles queue;  /**< From arrival until a device had it. */
    struct kops_quantiles device; /**< On the device. */
    struct kops_quantiles total;  /**< From arrival until the reply was written. */
};

/** One connection. Counts are since it was made. */
struct kops_client_info {
    int64_t pid, uid,
        gid; /**< As the kernel knew them when it connected; pid 0: of a pid namespace that the daemon does not see. */
    const char *client;       /**< What it calls itself, see kops_connect_options.name. Not to be trusted. */
    const char *comm;         /**< Its process's name when it connected; "" where that could not be read. */
    double connected_s;       /**< Since then. */
    uint64_t requests;        /**< Received. */
    uint64_t errors;          /**< Of them answered with an error. */
    uint64_t inflight;        /**< Not answered yet. */
    uint64_t queued;          /**< Of them runs that no device has yet. */
    uint64_t buffers;         /**< That it registered or allocated. */
    uint64_t mapped_bytes;    /**< Of its memory that the daemon has mapped. */
    uint64_t allocated_bytes; /**< Of the daemon's memory that it has. */
    uint64_t programs, kernels;
    uint64_t bytes_in, bytes_out; /**< Through the socket or the ring. */
    uint64_t output_bytes;        /**< Replies that it has not read. */
    bool paused;      /**< The daemon reads nothing of it at present: it has as much in flight or unread as it may. */
    bool shm;         /**< It talks through shared memory. */
    double device_us; /**< Time of devices that its runs took. */
    struct kops_latency latency;
    const char *isolation; /**< Whose work shares a GPU process with its kernels: "none", "user", "connection"; "": the
                                daemon does not say. */
    int64_t executor;      /**< Pid of the process that its kernels run in; 0: none at present. */
    uint64_t here;         /**< Launches in its own context that it told the daemon of. */
    const char *identity;  /**< The socket's that it connected to, which counts in place of `uid`; "": the daemon's
                                own, where users count. */
};

/** What one user may have at the same time; KOPS_NO_LIMIT: as much as there is. */
struct kops_user_limits {
    uint64_t connections, buffers, mappings, mapped_bytes, allocated_bytes, host_bytes, program_bytes, waiting_bytes,
        inflight, fds, kernel_bytes;
    uint64_t messages_per_s;
    uint64_t device_share; /**< Percent of one device's time. */
};

/** One user: all connections of one uid, or of one identity, together. */
struct kops_user_info {
    int64_t uid;
    uint64_t connections, buffers;
    uint64_t mappings; /**< Pieces of memory that the daemon knows. */
    uint64_t mapped_bytes, allocated_bytes;
    uint64_t host_bytes;    /**< Of the host's memory, mapped by the daemon. */
    uint64_t program_bytes; /**< Of its programs. */
    uint64_t waiting_bytes; /**< Of requests and replies that wait. */
    uint64_t inflight, fds;
    uint64_t kernel_bytes; /**< Of its modules and kernels. */
    uint64_t requests;     /**< Since the daemon knows the user. */
    uint64_t refused;      /**< Of them because of a limit. */
    double device_us;
    struct kops_user_limits limits;
    const char *identity; /**< Of an identity, whose `uid` is a number of the daemon's own; "": of a user. */
};

/** What a device's speed depends on at one time. NAN: the device does not tell. */
struct kops_conditions {
    const char *missing; /**< Why nothing is known; "": something is. */
    double clock_mhz;    /**< Of a GPU's multiprocessors; of the host's fastest processor. */
    double clock_max_mhz, memory_clock_mhz, memory_clock_max_mhz;
    double temperature_c, power_w, power_limit_w;
    double power_slowed_us,
        thermal_slowed_us;      /**< How long power and heat kept the clocks down since the driver began. */
    const char *const *reasons; /**< Why the clocks are not higher, such as "power_cap"; NULL-terminated. PROTOCOL.md,
                                     Conditions, lists them. */
};

/** How busy a device is. */
struct kops_device_load {
    unsigned index;
    const char *name, *uuid;
    double busy_us;                     /**< Time that it worked for this daemon's clients, since the daemon's start. */
    uint64_t running;                   /**< Jobs that it has. */
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

/** The way to drain. Zero: take no new work, and wait for work in flight as long as it takes. */
struct kops_drain_options {
    bool stop;          /**< Then the daemon ends with status 0, also when the time was over before. */
    bool resume;        /**< Take new work again, at once; alone. */
    int64_t timeout_ms; /**< Wait so long at most; 0: as long as it takes. */
    uint64_t reserved[4];
};

/** What is left. */
struct kops_drain_result {
    bool drained;         /**< No job is in flight. */
    uint64_t jobs;        /**< In flight. */
    uint64_t connections; /**< Open, this one included. */
};

/** Lets the daemon take no new work: requests for it are answered shutting_down until it is resumed, started anew, or
 * for ever with `stop`. Returns when no job is in flight any more, or when the time is over: `ret_result->drained` says
 * which. Not bound by the client's own timeout. `options` and `ret_result` may be NULL. Not repeated when the
 * connection is lost meanwhile. For administrators.
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
