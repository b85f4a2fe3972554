/* The tournament of candidates on a clock of its own: that the fastest wins, that noise does not, and that it ends in
 * time whatever an execution takes. */
#include <math.h>

#include "tests/support/unit.h"
#include "tune/tournament.h"

static const uint64_t BUDGET_NS = 800 * 1000 * 1000;

enum { WAIT_US = 1200, EXECUTIONS_MAX = 64 };

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

static double next_noise(struct fake *f, unsigned i)
{
    const double part = f->noisier > 0 && i + 1 == f->r.n ? f->noisier : f->noise;

    f->random = f->random * 6364136223846793005U + 1442695040888963407U;
    return 1 + part * ((double)(f->random >> 11) * 0x1p-52 - 1);
}

static int begin(struct fake *f, unsigned i, struct error *e)
{
    f->now_ns += (uint64_t)(1e3 * f->wait_us);
    if (f->cancel && f->n_measured + 1 > f->cancel)
        return error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
    if (i + 1 == f->fails)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it cannot");
    f->n_measured++;
    if (!f->measured[i]++)
        f->order[f->n_order++] = i;
    return 0;
}

static double in_a_row(struct fake *f, unsigned i, double guess_us, double slice_us)
{
    const double fit = slice_us / guess_us, us = f->us[i] * next_noise(f, i);
    const unsigned n = fit < 1 ? 1 : fit > EXECUTIONS_MAX ? EXECUTIONS_MAX : (unsigned)fit;

    f->now_ns += (uint64_t)(1e3 * us * n);
    return us;
}

static int first(void *context, const struct tuning_choice *choice, double slice_us, double *ret_us, bool *ret_rough,
                 struct error *e)
{
    struct fake *f = context;
    const unsigned i = choice->workspace_bytes;

    if (begin(f, i, e) < 0)
        return -1;
    assert_int_equal(f->measured[i], 1);
    f->now_ns += (uint64_t)(1e3 * (f->us[i] + f->load_us));
    *ret_rough = f->us[i] > TOURNAMENT_LONG_US;
    *ret_us = *ret_rough ? f->us[i] * next_noise(f, i) + f->overlap_us : in_a_row(f, i, f->us[i], slice_us);
    return 0;
}

static int measure(void *context, const struct tuning_choice *choice, double guess_us, double slice_us, double *ret_us,
                   struct error *e)
{
    struct fake *f = context;

    if (begin(f, choice->workspace_bytes, e) < 0)
        return -1;
    assert_true(guess_us > 0);
    *ret_us = in_a_row(f, choice->workspace_bytes, guess_us, slice_us);
    return 0;
}

static bool ends_all(void *context, const struct error *why)
{
    return why->code == ERROR_CANCELLED;
}

static uint64_t now_ns(void *context)
{
    return ((struct fake *)context)->now_ns;
}

static double pause_ns(void *context)
{
    const struct fake *f = context;

    return f->patient || !f->n_measured ? 0 : 1e3 * f->wait_us;
}

/* `library` algorithms, then `own` kernels; all take `us`. */
static struct fake fake_of(unsigned library, unsigned own, double us)
{
    static unsigned seed;
    struct fake f = {.r = {.n = library + own}, .noise = 0.004, .wait_us = WAIT_US, .random = ++seed};

    for (unsigned i = 0; i < f.r.n; i++) {
        f.r.candidates[i].choice.workspace_bytes = i; /* its number */
        f.r.candidates[i].choice.has_algorithm = i < library;
        f.us[i] = us;
    }
    return f;
}

static int run(struct fake *f, struct error *e)
{
    const struct tournament t = {first,     measure, ends_all, now_ns, pause_ns, f, f->now_ns, f->now_ns + BUDGET_NS,
                                 f->patient};

    return tournament_run(&t, &f->r, e);
}

static double took_ms(const struct fake *f)
{
    return (double)f->now_ns * 1e-6;
}

TEST(the_fastest_wins_wherever_it_is)
{
    static const double lengths[] = {5, 80, 900, 4000, 9000, 21000};

    for (unsigned l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
        for (unsigned own = 0; own < 2; own++) {
            const double us = lengths[l];
            struct fake f = fake_of(64, 4, us);
            /* Of long ones the library's later candidates are left out. */
            const unsigned fastest = own ? 65 : us > 5000 ? 5 : us > 2000 ? 12 : 40;

            for (unsigned i = 0; i < f.r.n; i++)
                f.us[i] = us * (1 + 0.01 * (i * 7 % 90));
            f.us[0] = us * 1.1;
            f.us[fastest] = us * 0.9;
            f.load_us = us / 10;
            MUST(run(&f, &e));
            if (f.r.best != fastest)
                fail_msg("of %g us: %u, not %u", us, f.r.best, fastest);
            assert_true(f.r.candidates[fastest].us < f.r.candidates[0].us);
            assert_true(took_ms(&f) < 800 + us * 2e-3);
        }
}

TEST(noise_moves_nothing)
{
    unsigned left = 0;

    for (unsigned n = 0; n < 50; n++) {
        struct fake f = fake_of(32, 3, 100);

        f.noise = 0.006;
        f.r.usual = 5;
        f.r.before = 9;
        MUST(run(&f, &e));
        left += f.r.best != f.r.before;
    }
    assert_in_range(left, 0, 1);
}

/* The last candidate is a little faster than the fastest of the others, and reaches what runs now. */
TEST(what_is_chosen_is_faster_beyond_its_own_noise)
{
    unsigned n_chosen = 0;

    for (unsigned trial = 0; trial < 200; trial++) {
        struct fake f = fake_of(1, 2, 100);
        const struct tuning_candidate *before, *best;

        f.us[1] = 90;
        f.us[2] = 89;
        f.noisier = 0.3;
        MUST(run(&f, &e));
        before = &f.r.candidates[f.r.before];
        best = &f.r.candidates[f.r.best];
        assert_true(best == before || best->high_us < before->low_us);
        n_chosen += best != before;
    }
    assert_true(n_chosen > 150);
}

/* Whatever one execution takes, and however the device is in use: only the usual one's own two can take it beyond. */
TEST(it_ends_in_time)
{
    static const double lengths[] = {1, 100, 1400, 2900, 3100, 21000, 90000, 150000, 250000, 600000, 2e6};

    for (unsigned l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
        for (unsigned busy = 0; busy < 2; busy++) {
            const double us = lengths[l];
            struct fake f = fake_of(80, 5, us);
            double most;

            for (unsigned i = 80; i < 85; i++)
                f.us[i] = us * 5; /* our own are slow */
            f.wait_us = busy ? 20000 : WAIT_US;
            f.load_us = us < 1e5 ? 8000 : 0;
            MUST(run(&f, &e));
            most = us * 1.5e-3 + 35; /* one measurement whose pause began in time */
            most = 800 + most > us * 1e-3 + 100 ? 800 + most : us * 1e-3 + 100;
            if (took_ms(&f) > most)
                fail_msg("executions of %g us took %g ms", us, took_ms(&f));
            assert_true(f.measured[0] > 0);
            assert_int_equal(f.r.candidates[f.r.usual].state, TUNING_MEASURED);
        }
}

/* Candidates of which one takes another time than the others. */
TEST(a_gain_is_taken_where_it_is_clear)
{
    static const struct {
        const char *what;
        unsigned library, own;
        double us;
        unsigned other;
        double others_us, wait_us, load_us, overlap_us;
        unsigned best;
        double most_ms; /* 0: not asked */
        unsigned n;     /* measurements of the best, at least */
    } cases[] = {
        {"3 % by single measurements of long ones", 2, 0, 130000, 1, 126100, WAIT_US, 0, 0, 0, 0, 0},
        {"20 % by single measurements of long ones", 2, 0, 130000, 1, 104000, WAIT_US, 0, 0, 1, 0, 0},
        {"10 % where pauses take all the time", 3, 0, 100, 2, 90, 100000, 0, 0, 0, 1000, 0},
        {"half where pauses take all the time", 3, 0, 100, 2, 50, 100000, 0, 0, 2, 1000, 0},
        {"8 % on a busy device, which has finals", 14, 2, 100, 9, 92, 20000, 0, 0, 9, 900, 3},
        {"less than a tenth of a microsecond", 2, 0, 4, 1, 3.92, WAIT_US, 0, 0, 0, 0, 0},
        {"more than a tenth of a microsecond", 2, 0, 4, 1, 3.8, WAIT_US, 0, 0, 1, 0, 0},
        {"code that takes long to load", 6, 1, 50, 6, 30, WAIT_US, 40000, 0, 6, 0, 0},
        {"a first execution that says too little", 3, 0, 40000, 2, 30000, WAIT_US, 0, -8000, 2, 0, 0},
        {"a first execution that says too much", 3, 0, 40000, 2, 30000, WAIT_US, 0, 8000, 2, 0, 0},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (unsigned trial = 0; trial < 50; trial++) {
            struct fake f = fake_of(cases[i].library, cases[i].own, cases[i].us);
            const struct tuning_candidate *best;

            f.us[cases[i].other] = cases[i].others_us;
            f.wait_us = cases[i].wait_us;
            f.load_us = cases[i].load_us;
            f.overlap_us = cases[i].overlap_us;
            f.noise = cases[i].us < 10 ? 0.001 : f.noise;
            MUST(run(&f, &e));
            best = &f.r.candidates[f.r.best];
            if (f.r.best != cases[i].best || (cases[i].most_ms > 0 && took_ms(&f) > cases[i].most_ms) ||
                best->n < cases[i].n || fabs(best->us / f.us[f.r.best] - 1) > 0.04)
                fail_msg("%s: %u of %g us in %g ms", cases[i].what, f.r.best, best->us, took_ms(&f));
        }
}

/* Where there is no time for a second execution of each. */
TEST(nothing_is_chosen_by_a_first_execution)
{
    struct fake f = fake_of(2, 0, 260000);

    f.overlap_us = -100000;
    f.us[1] = 250000;
    f.us[0] = 300000;
    MUST(run(&f, &e));
    assert_int_equal(f.r.best, 0);
    assert_int_equal(f.r.candidates[1].state, TUNING_LEFT_OUT);
    assert_false(f.r.candidates[1].tried);
    f = fake_of(2, 0, 215000); /* the usual one has its first execution alone, which says too little */
    f.overlap_us = -16000;
    f.r.before = 1;
    MUST(run(&f, &e));
    assert_true(f.r.candidates[0].us < f.r.candidates[1].us * 0.94);
    assert_int_equal(f.r.best, 1);
}

TEST(the_choice_is_never_slower_than_the_usual_one)
{
    for (unsigned n = 0; n < 200; n++) {
        struct fake f = fake_of(20, 4, 10.0 * (1 << n % 14));
        const double us = f.us[0];

        f.noise = 0.02;
        for (unsigned i = 1; i < f.r.n; i++)
            f.us[i] = us * (0.97 + 0.02 * ((i * 13 + n) % 20));
        f.r.usual = n % 20;
        f.r.before = f.r.usual;
        MUST(run(&f, &e));
        assert_true(f.us[f.r.best] <= f.us[f.r.usual] * 1.01);
    }
}

TEST(one_that_cannot_is_none_and_a_cancelled_tuning_ends)
{
    struct fake f = fake_of(4, 2, 50);

    f.fails = 1; /* the usual one */
    f.r.candidates[0].text[0] = 'x';
    f.us[5] = 20;
    MUST(run(&f, &e));
    assert_int_equal(f.r.best, 5);
    assert_int_equal(f.r.candidates[0].state, TUNING_FAILED);
    assert_true(isnan(f.r.candidates[0].us) && f.r.candidates[0].tried);
    assert_string_equal(f.r.candidates[0].text, "x");
    for (unsigned cancel = 1; cancel < 20; cancel += 6) {
        f = fake_of(4, 2, 50);
        f.cancel = cancel;
        MUST_FAIL(run(&f, &e), ERROR_CANCELLED, "");
        assert_int_equal(f.n_measured, cancel);
    }
    f = fake_of(1, 0, 50);
    f.fails = 1;
    MUST_FAIL(run(&f, &e), ERROR_UNSUPPORTED, "");
}

/* The library's first choice and what runs now, the library's next three, our own kernels, the rest. */
TEST(the_most_promising_come_first)
{
    static const unsigned order[] = {0, 7, 1, 2, 3, 10, 11, 4, 5, 6, 8, 9};
    struct fake f = fake_of(10, 2, 40);

    f.r.before = 7;
    MUST(run(&f, &e));
    assert_int_equal(f.n_order, 12);
    assert_memory_equal(f.order, order, sizeof(order));
    assert_int_equal(f.r.n_new, 12);
    assert_int_equal(tuning_tried(&f.r), 12);
}

/* Candidates that are clearly slower are measured once, those that are a little slower not as often as the fastest. */
TEST(who_is_slower_is_measured_less)
{
    struct fake f = fake_of(12, 0, 100);

    f.us[1] = 99;
    f.us[2] = 107;
    f.us[3] = 115;
    for (unsigned i = 4; i < 12; i++)
        f.us[i] = 140;
    MUST(run(&f, &e));
    for (unsigned i = 4; i < 12; i++) {
        assert_int_equal(f.measured[i], 1);
        assert_int_equal(f.r.candidates[i].state, TUNING_SLOWER);
    }
    assert_int_equal(f.measured[0], 1 + TOURNAMENT_ROUNDS);
    assert_int_equal(f.measured[1], 1 + TOURNAMENT_ROUNDS);
    assert_int_equal(f.measured[3], 1 + 2);
    assert_int_equal(f.measured[2], 1 + 3);
    assert_true(took_ms(&f) < 100);
}

/* A tuning that ended too early is gone on with: what was tried is passed over, and in the end all has been. */
TEST(a_later_tuning_goes_on)
{
    struct fake f = fake_of(40, 4, 8000);
    unsigned tunings = 0, fastest = 37, tried;

    f.us[fastest] = 6000;
    do {
        unsigned counts[TUNING_CANDIDATES_MAX];
        bool were_tried[TUNING_CANDIDATES_MAX];

        for (unsigned i = 0; i < f.r.n; i++)
            were_tried[i] = f.r.candidates[i].tried;
        memset(f.measured, 0, sizeof(f.measured));
        f.n_order = 0;
        MUST(run(&f, &e));
        memcpy(counts, f.measured, sizeof(counts));
        for (unsigned i = 0; i < f.r.n; i++) {
            if (were_tried[i] && i != f.r.usual && i != f.r.before)
                assert_int_equal(counts[i], 0);
            if (!f.r.candidates[i].tried)
                assert_true(counts[i] == 0 && f.r.candidates[i].state == TUNING_LEFT_OUT &&
                            isnan(f.r.candidates[i].us));
        }
        assert_true(f.r.n_new > 0);
        tried = tuning_tried(&f.r);
        tunings++;
        f.r.before = f.r.best;
    } while (tried < f.r.n);
    assert_in_range(tunings, 2, 5);
    assert_int_equal(f.r.best, fastest);
}

/* Where nobody waits one more is tried each time, however long that takes: so all are in the end. */
TEST(a_patient_tuning_always_goes_on)
{
    for (unsigned patient = 0; patient < 2; patient++) {
        struct fake f = fake_of(3, 1, 700000);

        f.patient = patient;
        f.us[2] = 500000;
        for (unsigned i = 0; i < 4; i++) {
            memset(f.measured, 0, sizeof(f.measured));
            f.n_order = 0;
            MUST(run(&f, &e));
            f.r.before = f.r.best;
        }
        assert_int_equal(tuning_tried(&f.r), patient ? 4 : 1);
        assert_int_equal(f.r.best, patient ? 2 : 0);
        assert_true(took_ms(&f) < (patient ? 4 * 3000 : 4 * 800));
    }
}

TEST(what_was_not_compared_stays)
{
    struct fake f = fake_of(4, 0, 300000);

    f.us[0] = 200000;
    f.r.before = 3;
    f.r.candidates[3].tried = true;
    f.r.candidates[3].us = 123;
    f.r.candidates[3].state = TUNING_SLOWER;
    f.wait_us = 250000;
    MUST(run(&f, &e));
    assert_int_equal(f.r.best, 3);
    assert_int_equal(f.r.candidates[3].state, TUNING_LEFT_OUT);
    assert_true(f.r.candidates[3].us == 123);
}
