/* A tournament decides which candidates are measured how often, and which one wins. The caller provides device and
 * clock.
 *
 * First round, each briefly: the usual candidate, the present choice, the library's first candidates, our own kernels,
 * then the rest in the library's order. Candidates far behind the fastest are out. Finals: the others are measured in
 * turn, fewer in each round, and the median of each counts. The present choice stays unless another candidate is faster
 * by more than the noise.
 *
 * A tournament ends in time: a measurement begins only while there is time for it. Candidates without time are left
 * out; a later tuning of the problem measures them, since it skips those that were tried. Where executions are so long
 * that there is no time for three rounds, a single measurement counts, and must be better by a larger margin.
 *
 * A candidate's first execution loads its code, so its time is inexact: it can rule the candidate out, but cannot make
 * it win. */
#ifndef KOPS_CUDA_TUNE_TOURNAMENT_H
#define KOPS_CUDA_TUNE_TOURNAMENT_H

#include "core/tuning.h"

enum {
    TOURNAMENT_BRIEF_US = 500,  /* length of a candidate's first measurement */
    TOURNAMENT_SLICE_US = 1500, /* length of later measurements */
    TOURNAMENT_LONG_US = 3000,  /* executions longer than this are measured less often */
    TOURNAMENT_FINALISTS = 8,   /* most finalists besides the usual candidate and the present choice */
    TOURNAMENT_ROUNDS = 9,      /* most rounds of the finals */
};

struct tournament {
    /* Runs a candidate for the first time in this tuning: once, so that its code is loaded, then as often as fits into
     * `slice_us`; *ret_us is the mean of these. If the first execution takes more than TOURNAMENT_LONG_US, there is no
     * other: *ret_rough is set, and *ret_us is its time less the host's time to enqueue it. -1: *e. */
    int (*first)(void *context, const struct tuning_choice *choice, double slice_us, double *ret_us, bool *ret_rough,
                 struct error *e);
    /* Measures the mean time of executions in a row, as many as fit into `slice_us` if one takes `guess_us`. */
    int (*measure)(void *context, const struct tuning_choice *choice, double guess_us, double slice_us, double *ret_us,
                   struct error *e);
    /* Whether the failure is not the candidate's, so that the tournament ends. */
    bool (*ends_all)(void *context, const struct error *why);
    uint64_t (*now_ns)(void *context);
    /* Returns the mean pause before a measurement so far; 0: none. */
    double (*pause_ns)(void *context);
    void *context;
    uint64_t begin_ns, until_ns; /* only the usual candidate's first measurement may begin after until_ns */
    bool patient;                /* allows one untried candidate any time */
};

/* `r` has its candidates, `usual` and `before` (the present choice). Candidates with `tried` are not measured again,
 * except these two. Sets measurements, `best`, `noise` and `n_new`. Errors: unsupported, no candidate can run; the
 * error for which ends_all() was true. */
int tournament_run(const struct tournament *t, struct tuning_result *r, struct error *e);

#endif
