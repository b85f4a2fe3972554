/* The tournament of candidates on a clock of its own: that the fastest wins, that noise does not, and that it ends in
 * time whatever an execution takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tune/tournament.h"

enum { WAIT_US = 1200 };
static const uint64_t BUDGET_NS = 800 * 1000 * 1000;

/* A device of which the test says how long each candidate takes. */
struct fake {
    struct tuning_result r;
    double us[TUNING_CANDIDATES_MAX];
    double load_us; /* more, of the very first execution of each */
    double noise;   /* a measurement is off by at most this part */
    double wait_us; /* before each measurement */
    uint64_t now_ns, random;
    unsigned measured[TUNING_CANDIDATES_MAX], n_measured;
    unsigned fails;  /* this candidate cannot run; from 1 */
    unsigned cancel; /* the so many-th measurement is the last; 0: none is */
};

static double next_noise(struct fake *f)
{
    f->random = f->random * 6364136223846793005U + 1442695040888963407U;
    return 1 + f->noise * ((double)(f->random >> 11) * 0x1p-52 - 1);
}

static int measure(void *context, const struct tuning_choice *choice, double guess_us, double *ret_us, struct error *e)
{
    struct fake *f = context;
    const unsigned i = choice->workspace_bytes;
    const double fit = guess_us > 0 ? TOURNAMENT_SLICE_US / guess_us : 1;
    const unsigned n = fit < 1 ? 1 : fit > 64 ? 64 : (unsigned)fit;
    const double us = f->us[i] * next_noise(f), load = f->measured[i] ? 0 : f->load_us;

    f->now_ns += (uint64_t)(1e3 * f->wait_us);
    if (f->cancel && f->n_measured + 1 > f->cancel)
        return error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
    if (i + 1 == f->fails)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it cannot");
    f->n_measured++;
    f->measured[i]++;
    f->now_ns += (uint64_t)(1e3 * (us * n + load));
    *ret_us = us + load / n;
    return 0;
}

static bool ends_all(void *context, const struct error *why)
{
    (void)context;
    return why->code == ERROR_CANCELLED;
}

static uint64_t now_ns(void *context)
{
    return ((struct fake *)context)->now_ns;
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
    const struct tournament t = {measure, ends_all, now_ns, f, f->now_ns, f->now_ns + BUDGET_NS};

    return tournament_run(&t, &f->r, e);
}

static double took_ms(const struct fake *f)
{
    return (double)f->now_ns * 1e-6;
}

static void the_fastest_wins_wherever_it_is(void **state)
{
    static const double lengths[] = {5, 80, 900, 4000, 9000, 21000};

    (void)state;
    for (unsigned l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
        for (unsigned own = 0; own < 2; own++) {
            const double us = lengths[l];
            struct fake f = fake_of(64, 4, us);
            /* Of long ones the library's later candidates are left out. */
            const unsigned fastest = own ? 65 : us > 5000 ? 6 : us > 2000 ? 12 : 40;
            struct error e;

            for (unsigned i = 0; i < f.r.n; i++)
                f.us[i] = us * (1 + 0.01 * (i * 7 % 90));
            f.us[0] = us * 1.1;
            f.us[fastest] = us * 0.9;
            f.load_us = us / 10;
            assert_int_equal(run(&f, &e), 0);
            if (f.r.best != fastest)
                fail_msg("of %g us: %u, not %u", us, f.r.best, fastest);
            assert_true(f.r.candidates[fastest].us < f.r.candidates[0].us);
            assert_true(took_ms(&f) < 800 + us * 2e-3);
        }
}

static void noise_moves_nothing(void **state)
{
    unsigned left = 0;

    (void)state;
    for (unsigned n = 0; n < 50; n++) {
        struct fake f = fake_of(32, 3, 100);
        struct error e;

        f.noise = 0.006;
        f.r.usual = 5;
        f.r.before = 9;
        assert_int_equal(run(&f, &e), 0);
        left += f.r.best != f.r.before;
    }
    assert_in_range(left, 0, 1);
}

/* Whatever one execution takes, and however the device is in use: only the usual one's own two can take it beyond. */
static void it_ends_in_time(void **state)
{
    static const double lengths[] = {1, 100, 1400, 2900, 3100, 21000, 90000, 150000, 250000, 600000, 2e6};

    (void)state;
    for (unsigned l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
        for (unsigned busy = 0; busy < 2; busy++) {
            const double us = lengths[l];
            struct fake f = fake_of(80, 5, us);
            double most;
            struct error e;

            for (unsigned i = 80; i < 85; i++)
                f.us[i] = us * 5; /* our own are slow */
            f.wait_us = busy ? 6500 : WAIT_US;
            f.load_us = us < 1e5 ? 8000 : 0;
            assert_int_equal(run(&f, &e), 0);
            most = us * 1.5e-3 + 20; /* one measurement that began in time */
            most = 800 + most > us * 1e-3 + 100 ? 800 + most : us * 1e-3 + 100;
            if (took_ms(&f) > most)
                fail_msg("executions of %g us took %g ms", us, took_ms(&f));
            assert_true(f.measured[0] > 0);
            assert_int_equal(f.r.candidates[f.r.usual].state, TUNING_MEASURED);
        }
}

/* By a single measurement only what is clearly faster is taken. */
static void long_executions_are_compared_once(void **state)
{
    struct fake f = fake_of(2, 0, 130000);
    struct error e;

    (void)state;
    f.us[1] *= 0.97;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 0);
    f = fake_of(2, 0, 130000);
    f.us[1] *= 0.8;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 1);
}

/* Where pauses take all the time, short ones are not compared well either. */
static void a_disturbed_tuning_changes_little(void **state)
{
    struct error e;

    (void)state;
    for (unsigned gain = 0; gain < 2; gain++) {
        struct fake f = fake_of(3, 0, 100);

        f.us[2] = gain ? 50 : 90;
        f.wait_us = 70000;
        assert_int_equal(run(&f, &e), 0);
        assert_int_equal(f.r.best, gain ? 2 : 0);
        assert_true(took_ms(&f) < 1000);
    }
}

static void the_choice_is_never_slower_than_the_usual_one(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 200; n++) {
        struct fake f = fake_of(20, 4, 10.0 * (1 << n % 14));
        const double us = f.us[0];
        struct error e;

        f.noise = 0.02;
        for (unsigned i = 1; i < f.r.n; i++)
            f.us[i] = us * (0.97 + 0.02 * ((i * 13 + n) % 20));
        f.r.usual = n % 20;
        f.r.before = f.r.usual;
        assert_int_equal(run(&f, &e), 0);
        assert_true(f.us[f.r.best] <= f.us[f.r.usual] * 1.01);
    }
}

static void one_that_cannot_is_none_and_a_cancelled_tuning_ends(void **state)
{
    struct fake f = fake_of(4, 2, 50);
    struct error e;

    (void)state;
    f.fails = 1; /* the usual one */
    f.us[5] = 20;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 5);
    assert_int_equal(f.r.candidates[0].state, TUNING_FAILED);
    assert_true(isnan(f.r.candidates[0].us));
    for (unsigned cancel = 1; cancel < 20; cancel += 6) {
        f = fake_of(4, 2, 50);
        f.cancel = cancel;
        assert_int_equal(run(&f, &e), -1);
        assert_int_equal(e.code, ERROR_CANCELLED);
        assert_int_equal(f.n_measured, cancel);
    }
    f = fake_of(1, 0, 50);
    f.fails = 1;
    assert_int_equal(run(&f, &e), -1);
    assert_int_equal(e.code, ERROR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_wins_wherever_it_is),
        cmocka_unit_test(noise_moves_nothing),
        cmocka_unit_test(it_ends_in_time),
        cmocka_unit_test(long_executions_are_compared_once),
        cmocka_unit_test(a_disturbed_tuning_changes_little),
        cmocka_unit_test(the_choice_is_never_slower_than_the_usual_one),
        cmocka_unit_test(one_that_cannot_is_none_and_a_cancelled_tuning_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
