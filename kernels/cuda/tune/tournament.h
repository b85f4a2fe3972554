/* Who is measured how often, and what wins: pure of devices and clocks, which are the caller's.
 *
 * The usual candidate is measured first, then what runs now, then the library's first ones and our own kernels, then
 * the rest in the library's order: each briefly. Those far behind the fastest are left there; the others take turns,
 * and from round to round fewer of them, the closer ones. The median of each counts. What runs now stays unless another
 * is faster by more than the noise.
 *
 * It ends in time: a measurement begins only while there is time for it. What there is no time for is left out, and has
 * its turn in a later tuning of the problem, which passes over what an earlier one has tried. Where one execution is so
 * long that there is no time for three rounds, a single measurement counts, and must be better by a larger margin.
 *
 * The first execution of a candidate loads its code. What that takes is no time of the candidate's: it tells who is
 * hopeless, and nobody wins by it. */
#ifndef KOPS_CUDA_TUNE_TOURNAMENT_H
#define KOPS_CUDA_TUNE_TOURNAMENT_H

#include "core/tuning.h"

enum {
    TOURNAMENT_BRIEF_US = 500,  /* what the first measurement of each takes of executions in a row */
    TOURNAMENT_SLICE_US = 1500, /* the others */
    TOURNAMENT_LONG_US = 3000,  /* of one execution: then few are measured */
    TOURNAMENT_FINALISTS = 8,   /* beside the usual one and what runs now */
    TOURNAMENT_ROUNDS = 9,      /* of the finalists, at most */
};

struct tournament {
    /* Runs a candidate that has not run in this tuning once, so that its code is there, and then as often as fits
     * into `slice_us`, whose mean is *ret_us. Where the first execution takes more than TOURNAMENT_LONG_US there is
     * no other: *ret_rough is set, and *ret_us is its time, without what the host took to enqueue it. -1: *e. */
    int (*first)(void *context, const struct tuning_choice *choice, double slice_us, double *ret_us, bool *ret_rough,
                 struct error *e);
    /* The mean time of executions in a row, as many as fit into `slice_us` where one takes `guess_us`. */
    int (*measure)(void *context, const struct tuning_choice *choice, double guess_us, double slice_us, double *ret_us,
                   struct error *e);
    /* Whether the failure is not the candidate's. */
    bool (*ends_all)(void *context, const struct error *why);
    uint64_t (*now_ns)(void *context);
    /* The mean pause before a measurement so far; 0: there was none. */
    double (*pause_ns)(void *context);
    void *context;
    uint64_t begin_ns, until_ns; /* of the tournament; no measurement begins later but the usual one's first */
    bool patient;                /* one candidate that is tried for the first time may take as long as it does */
};

/* `r` has its candidates, `usual` and `before`; those with `tried` are not measured again unless they are one of these
 * two. Sets their measurements, `best`, `noise` and `n_new`. Errors: unsupported, none of them can run; what ends all.
 */
int tournament_run(const struct tournament *t, struct tuning_result *r, struct error *e);

#endif
