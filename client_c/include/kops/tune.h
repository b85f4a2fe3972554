/**
 * @file tune.h
 * @brief Tuning: the daemon measures the kernels for an op, and runs the fastest one from then on, for every client.
 * <kops/kops.h> includes it.
 *
 * A daemon that tunes lists the feature "tune" (kops_info_feature()). It keeps what it has chosen, also for the daemons
 * after it, for GPUs, drivers, libraries and kernels that are equal. Every function may be called from any thread.
 */
#ifndef KOPS_TUNE_H
#define KOPS_TUNE_H

#include <kops/kops.h>

#ifdef __cplusplus
extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a function and a struct of one name, as C has them */
#endif

/** A way to run the op. */
struct kops_candidate {
    const char *variant; /**< The kernel, as in kops_options.variant; several candidates may be of one. */
    const char *what;    /**< Description for people: "cublaslt 3, scratch 0 KiB". */
    const char *state; /**< "measured"; "slower": dropped after its first measurement; "left_out": not measured in this
                            tuning, for want of time; "unfit": cannot run this problem. */
    double us; /**< Time of one execution on the device, in microseconds: the median of several. NAN: not measured. */
};

/** Measurements and choice of a tuning. Free it with kops_tune_free(). */
struct kops_tune {
    const char *device;  /**< UUID. */
    const char *machine; /**< Kind of GPU, driver, library and kernels of the daemon. The choice holds on machines that
                              are equal in these. */
    const char *problem; /**< Description of the op's sizes, layouts and dtypes, for people. */
    const struct kops_candidate *const *candidates; /**< NULL-terminated. */
    unsigned n_candidates;                          /**< At least 1. */
    unsigned best;                                  /**< Index of the candidate that runs from now on. */
    unsigned before; /**< Index of the candidate that ran before; `best` where nothing was faster beyond noise. */
    unsigned usual;  /**< Index of the candidate that runs where nothing was tuned. */
    double noise;    /**< The wider interquartile spread of `best` and `before`, as a fraction of the time. */
    double took_us;  /**< Time from the request to the reply, waiting for other work included. */
    unsigned tried;  /**< Candidates that this tuning or earlier ones have tried; 0: not known. While fewer than all are
                          tried, the next tuning continues with the others. */
    bool goes_on;    /**< Measuring had to wait, and follows after the reply. */
};

/** Measures the candidates for an op on tensors of these shapes, strides, dtypes and alignments, in memory of the
 * daemon's own, and keeps the fastest for every client. Returns when that is done, or when the daemon's time for it is
 * over, within a second by default; other work goes first.
 *
 * `request` is as for kops_run(), so a request that runs often can be tuned as it is. Its tensors need no buffers: only
 * an offset modulo 256 counts, as the alignment. Memory of tensors that have buffers is neither read nor written; their
 * device is meant where `request->options.device` is NULL. Without buffers that is the daemon's default device. Of
 * `request->options` only device and timeout_ms are used; `variant` must be NULL, since tuning chooses it. The caller
 * frees the result with kops_tune_free().
 *
 * Errors: unsupported (the daemon has no feature "tune", or one kernel alone serves this op on the device),
 * limit_exceeded (a tuning of this user is under way, or the work is too large), bad_argument, no_memory, those of
 * kops_run(). */
KOPS_API enum kops_code kops_tune(kops_client *client, const struct kops_request *request, struct kops_tune **ret_tune,
                                  struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_tune *kops_tune_free(struct kops_tune *tune);

/** The chosen kernel for one tuned problem. */
struct kops_choice {
    const char *machine, *problem; /**< As in struct kops_tune. */
    const char *variant, *what;    /**< As in struct kops_candidate. */
    double us;                     /**< Time of the choice when it was tuned, in microseconds. */
    const char *usual;             /**< Description of the kernel that runs where nothing was tuned. */
    double usual_us; /**< Time of that kernel when the problem was tuned, in microseconds; NAN: it could not run. */
    double noise;    /**< As in struct kops_tune. */
    double at;       /**< Time of the choice, in seconds since 1970. */
    unsigned tried, candidates; /**< Candidates tried, and candidates in all; 0: not known. */
};

/** Free it with kops_tuning_free(). */
struct kops_tuning {
    const struct kops_choice *const *choices; /**< NULL-terminated, the newest first. */
    uint64_t total;                           /**< Number of choices, the ones not listed included. */
};

/** Choices of tuning: all for administrators, otherwise for problems that the client's user had tuned. Returns at most
 * 256, from number `from` on (0: the newest). With `clear`, for administrators, the daemon forgets all choices first.
 * The caller frees the result with kops_tuning_free().
 *
 * Errors: unsupported (the daemon has no feature "tune"), permission_denied (`clear`), no_memory, those of a
 * connection. */
KOPS_API enum kops_code kops_tuning(kops_client *client, uint64_t from, bool clear, struct kops_tuning **ret_tuning,
                                    struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_tuning *kops_tuning_free(struct kops_tuning *tuning);

#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif

#endif
