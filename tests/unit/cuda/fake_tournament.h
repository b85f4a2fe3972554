/* A device for the tournament whose measurements take as long as a test says, on a clock of its own. */
#ifndef KOPS_TEST_FAKE_TOURNAMENT_H
#define KOPS_TEST_FAKE_TOURNAMENT_H

#include "tune/tournament.h"

enum { WAIT_US = 1200 };

/* A device of which the test says how long each candidate takes. */
struct fake {
    struct tuning_result r;
    double us[TUNING_CANDIDATES_MAX];
    double load_us;    /* more, of the very first execution of each */
    double overlap_us; /* so much of loading is taken for the execution's */
    double noise;      /* a measurement is off by at most this part */
    double noisier;    /* the same of the last candidate; 0: as the others */
    double wait_us;    /* before each measurement */
    uint64_t now_ns, random;
    unsigned measured[TUNING_CANDIDATES_MAX], n_measured; /* measurements */
    unsigned order[TUNING_CANDIDATES_MAX], n_order;       /* by their first */
    unsigned fails;                                       /* this candidate cannot run; from 1 */
    bool patient;                                         /* as in struct tournament */
    unsigned cancel;                                      /* the so many-th measurement is the last; 0: none is */
};

/* `library` algorithms, then `own` kernels; all take `us`. */
struct fake fake_of(unsigned library, unsigned own, double us);

/* Runs the tournament in a budget of 0.8 s. */
int run(struct fake *f, struct error *e);

double took_ms(const struct fake *f);

#endif
