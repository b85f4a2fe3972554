/**
 * @file counters.h
 * @brief Figures from the GPU's own counters about one op or kernel. <kops/kops.h> includes it.
 *
 * The work runs alone on copies of its tensors, several times, in a process of its own: no memory of the client is
 * written, and other clients' work waits for some tenths of a second. docs/profiling.md explains the figures and their
 * requirements. Every function may be called from any thread.
 */
#ifndef KOPS_COUNTERS_H
#define KOPS_COUNTERS_H

#include <kops/kernel.h>
#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* kernel.h defines these types, and may be about to include this header. */
typedef struct kops_kernel kops_kernel;
struct kops_argument;
struct kops_launch_options;

/** A figure by its name, such as "dram_pct". */
struct kops_figure {
    const char *name;
    double value;
};

/** Launch geometry of the kernel, and the resources that it takes. */
struct kops_counter_launch {
    uint64_t grid[3], block[3];
    uint64_t registers;                     /**< Registers of a thread. */
    uint64_t static_shared, dynamic_shared; /**< Bytes of a block. */
    uint64_t local_bytes;                   /**< Local memory of a thread: spilled registers, and arrays. */
    double occupancy_pct;                   /**< Occupancy that the launch allows; NAN: not known. */
    const char *limiter; /**< Resource that keeps more warps out: "warps", "blocks", "registers", "shared_memory". */
};

struct kops_counters {
    const char *verdict; /**< "memory", "compute" or "latency". */
    const char *why;     /**< The reason, a sentence. */
    const char *kernel;  /**< The driver's name of the longest kernel, which the figures describe; "": unknown. */
    const char *device, *variant;
    uint64_t kernels;      /**< Kernels that one execution launches. */
    uint64_t passes;       /**< Counting passes that were needed, each of two executions. */
    uint64_t copied_bytes; /**< Size of the copied tensors. */
    int64_t others;        /**< Processes that are not the daemon's and have a context on the device; -1: not known. */
    size_t n_values, n_stalls;
    const struct kops_figure *values; /**< Counted values, as far as the device counts them. */
    const struct kops_figure *stalls; /**< Reasons why warps wait, in percent of their time. */
    bool has_launch;                  /**< `launch` is known. */
    struct kops_counter_launch launch;
};

/** The caches that each execution finds. */
enum kops_counter_caches {
    KOPS_CACHES_COLD, /**< The L2 cache is flushed before each execution. */
    KOPS_CACHES_WARM, /**< The L2 cache keeps the data of the execution before. */
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

/** Counts a kernel of the user's own, as kops_counters_run() does an op. `how` may be NULL. */
KOPS_API enum kops_code kops_counters_launch(kops_kernel *kernel, const struct kops_argument *args, size_t n_args,
                                             const struct kops_launch_options *how, enum kops_counter_caches caches,
                                             struct kops_counters **ret_counters, struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_counters *kops_counters_free(struct kops_counters *counters);

#ifdef __cplusplus
}
#endif

#endif
