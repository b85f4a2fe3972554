/**
 * @file counters.h
 * @brief What the GPU's own counters say of one op or kernel. <kops/kops.h> includes it.
 *
 * The work runs alone on copies of its tensors, several times, in a process of its own: no memory of the client is
 * written, and other clients' work waits for some tenths of a second. docs/profiling.md says what the figures mean and
 * what they need. Every function may be called from any thread.
 */
#ifndef KOPS_COUNTERS_H
#define KOPS_COUNTERS_H

#include <kops/kernel.h>
#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* kernel.h has them, and may be on its way to include this header. */
typedef struct kops_kernel kops_kernel;
struct kops_argument;
struct kops_launch_options;

/** A figure by its name, such as "dram_pct". */
struct kops_figure {
    const char *name;
    double value;
};

/** How the kernel was launched, and what that costs. */
struct kops_counter_launch {
    uint64_t grid[3], block[3];
    uint64_t registers;                     /**< Of a thread. */
    uint64_t static_shared, dynamic_shared; /**< Bytes of a block. */
    uint64_t local_bytes;                   /**< Of a thread: registers that were spilled, and arrays. */
    double occupancy_pct;                   /**< That the launch allows; NAN: not known. */
    const char *limiter; /**< What keeps more warps out: "warps", "blocks", "registers", "shared_memory". */
};

struct kops_counters {
    const char *verdict; /**< "memory", "compute" or "latency". */
    const char *why;     /**< The reason, a sentence. */
    const char *kernel;  /**< The driver's name of the kernel that the figures are of, the longest one; "": unknown. */
    const char *device, *variant;
    uint64_t kernels;      /**< That one execution launches. */
    uint64_t passes;       /**< That were needed, of two executions each. */
    uint64_t copied_bytes; /**< Of the tensors. */
    int64_t others;        /**< Processes that are not the daemon's and have a context on the device; -1: not known. */
    size_t n_values, n_stalls;
    const struct kops_figure *values; /**< Those that the device counts. */
    const struct kops_figure *stalls; /**< What warps wait for, in percent of their time. */
    bool has_launch;                  /**< `launch` is known. */
    struct kops_counter_launch launch;
};

/** The caches that each execution finds. */
enum kops_counter_caches {
    KOPS_CACHES_COLD, /**< The L2 cache was flushed. */
    KOPS_CACHES_WARM, /**< It keeps what an execution before has left there. */
};

/** Counts an op. Of `request->options` device, deadline_ms and timeout_ms mean something. Free the result with
 * kops_counters_free().
 *
 * Errors: unsupported (no GPU, no CUPTI, an older daemon), permission_denied (the driver keeps counters for
 * administrators), device_error (another profiler has them), limit_exceeded (one of this user is under way, or too many
 * bytes), job_timeout, those of kops_run(). The message says what is missing. */
KOPS_API enum kops_code kops_counters_run(kops_client *client, const struct kops_request *request,
                                          enum kops_counter_caches caches, struct kops_counters **ret_counters,
                                          struct kops_error *ret_error);

/** The same for a kernel of the user's own. `how` may be NULL. */
KOPS_API enum kops_code kops_counters_launch(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                             const struct kops_launch_options *how, enum kops_counter_caches caches,
                                             struct kops_counters **ret_counters, struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_counters *kops_counters_free(struct kops_counters *counters);

#ifdef __cplusplus
}
#endif

#endif
