/* Who is measured how often, and what wins: pure of devices and clocks, which are the caller's.
 *
 * The usual candidate is measured first, then what runs now, then the library's first ones and our own kernels, then
 * the rest in the library's order. Those far behind the fastest are left out; the others take turns, and the median of
 * each counts. What runs now stays unless another is faster by more than the noise.
 *
 * It ends in time: a measurement begins only while there is time for it, the rest of the candidates is left out, and
 * finalists are as many as three rounds have time for. Where one execution is so long that there is no time for three,
 * a single measurement counts, and must be better by a larger margin. */
#ifndef KOPS_CUDA_TUNE_TOURNAMENT_H
#define KOPS_CUDA_TUNE_TOURNAMENT_H

#include "core/tuning.h"

enum {
    TOURNAMENT_SLICE_US = 1500, /* what a measurement takes of executions in a row */
    TOURNAMENT_FINALISTS = 8,   /* beside the usual one and what runs now */
    TOURNAMENT_ROUNDS = 9,      /* of the finalists, at most */
};

struct tournament {
    /* The mean time of one execution, of as many as fit into a slice; `guess_us` 0: of one. -1: *e. */
    int (*measure)(void *context, const struct tuning_choice *choice, double guess_us, double *ret_us, struct error *e);
    /* Whether what a measurement has failed with is no matter of the candidate's. */
    bool (*ends_all)(void *context, const struct error *why);
    uint64_t (*now_ns)(void *context);
    void *context;
    uint64_t begin_ns, until_ns; /* of the tournament; no measurement begins later but the usual one's first */
};

/* `r` has its candidates, `usual` and `before`. Sets their measurements, `best` and `noise`. Errors: unsupported, none
 * of them can run; what ends all. */
int tournament_run(const struct tournament *t, struct tuning_result *r, struct error *e);

#endif
