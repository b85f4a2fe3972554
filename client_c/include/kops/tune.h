/**
 * @file tune.h
 * @brief Tuning: what is measured to be the fastest kernel for an op runs from then on, for every client.
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

/** Something that can run the op. */
struct kops_candidate {
    const char *variant; /**< The kernel, as in kops_options.variant; several candidates may be of one. */
    const char *what;    /**< Its description, to be shown: "cublaslt 3, scratch 0 KiB". */
    const char *state;   /**< "measured"; "slower": left behind after its first measurement; "left_out": not measured
                              in this tuning, for want of time; "unfit": it cannot run this. */
    double us; /**< Time of one execution on the device, in microseconds: the median of several. NAN: not measured. */
};

/** What a tuning has measured and chosen. Free it with kops_tune_free(). */
struct kops_tune {
    const char *device;  /**< UUID. */
    const char *machine; /**< The kind of GPU, its driver, the library and the daemon's kernels: the choice is for equal
                              ones. */
    const char *problem; /**< Description of the op's sizes, layouts and dtypes, to be shown. */
    const struct kops_candidate *const *candidates; /**< NULL-terminated. */
    unsigned n_candidates;                          /**< At least 1. */
    unsigned best;                                  /**< Index of the candidate that runs from now on. */
    unsigned before; /**< Of the one that ran before; `best` where nothing was faster beyond noise. */
    unsigned usual;  /**< Of the one that runs where nothing was tuned. */
    double noise;    /**< The wider spread of `best` and `before` between their quartiles, as a part of the time. */
    double took_us;  /**< From the request to the reply, waiting for other work included. */
    unsigned tried;  /**< Candidates that this tuning or earlier ones have tried; 0: not known. Where it is less than
                          there are, the next tuning goes on with the others. */
    bool goes_on;    /**< There was no time to measure before the reply. It is done after it. */
};

/** Measures what can run an op on tensors of these shapes, strides, dtypes and alignments, on memory of the daemon's
 * own, and keeps the fastest for every client. Returns when that is done, or when the daemon's time for it is over,
 * within a second by default; other work goes first.
 *
 * `request` is that of kops_run(), so that what runs often can be tuned as it is. Its tensors need no buffers: of an
 * offset only the remainder modulo 256 counts, as the alignment. Memory of tensors that have buffers is neither read
 * nor written, and their device is meant where `request->options.device` is NULL; without either, the daemon's default
 * device. Of `request->options` device and timeout_ms mean something; `variant` must be NULL, since it is what tuning
 * chooses. The result is the caller's.
 *
 * Errors: unsupported (the daemon has no feature "tune", or one kernel alone serves this op on the device),
 * limit_exceeded (a tuning of this user is under way, or the work is too large), bad_argument, no_memory, those of
 * kops_run(). */
KOPS_API enum kops_code kops_tune(kops_client *client, const struct kops_request *request, struct kops_tune **ret_tune,
                                  struct kops_error *ret_error);

/** NULL is allowed. Returns NULL. */
KOPS_API struct kops_tune *kops_tune_free(struct kops_tune *tune);

/** What runs for one problem since it was tuned. */
struct kops_choice {
    const char *machine, *problem; /**< As in struct kops_tune. */
    const char *variant, *what;    /**< As in struct kops_candidate. */
    double us;                     /**< Its time then, in microseconds. */
    const char *usual;             /**< Description of what runs where nothing was tuned. */
    double usual_us;               /**< Its time then; NAN: it could not run. */
    double noise;                  /**< As in struct kops_tune. */
    double at;                     /**< When it was chosen, in seconds since 1970. */
    unsigned tried, candidates;    /**< It was chosen from so many, of so many that there were; 0: not known. */
};

/** Free it with kops_tuning_free(). */
struct kops_tuning {
    const struct kops_choice *const *choices; /**< NULL-terminated, the newest first. */
    uint64_t total;                           /**< Choices that there are. */
};

/** What tuning has chosen, for administrators of all problems, else of those that the own user had tuned: of `total`
 * choices those from number `from` on (0: the newest), 256 at most. With `clear`, for administrators, all are forgotten
 * first. The result is the caller's.
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
