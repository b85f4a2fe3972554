/* The tournament of candidates on a clock of its own: that the fastest wins, that noise does not, and that it ends in
 * time whatever an execution takes. */
#include <math.h>
#include <stdio.h>

#include "fake_tournament.h"
#include "tests/support/unit.h"

TEST(the_fastest_wins_wherever_it_is)
{
    static const double lengths[] = {5, 80, 900, 4000, 9000, 21000};

    for (unsigned l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++)
        for (unsigned own = 0; own < 2; own++) {
            const double us = lengths[l];
            struct fake f = fake_of(64, 4, us);
            /* Of long ones the library's later candidates are left out. */
            const unsigned fastest = own ? 65 : us > 5000 ? 5 : us > 2000 ? 12 : 40;
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

TEST(noise_moves_nothing)
{
    unsigned left = 0;

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

/* The last candidate is a little faster than the fastest of the others, and reaches what runs now. */
TEST(what_is_chosen_is_faster_beyond_its_own_noise)
{
    unsigned n_chosen = 0;

    for (unsigned trial = 0; trial < 200; trial++) {
        struct fake f = fake_of(1, 2, 100);
        const struct tuning_candidate *before, *best;
        struct error e;

        f.us[1] = 90;
        f.us[2] = 89;
        f.noisier = 0.3;
        assert_int_equal(run(&f, &e), 0);
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
            struct error e;

            for (unsigned i = 80; i < 85; i++)
                f.us[i] = us * 5; /* our own are slow */
            f.wait_us = busy ? 20000 : WAIT_US;
            f.load_us = us < 1e5 ? 8000 : 0;
            assert_int_equal(run(&f, &e), 0);
            most = us * 1.5e-3 + 35; /* one measurement whose pause began in time */
            most = 800 + most > us * 1e-3 + 100 ? 800 + most : us * 1e-3 + 100;
            if (took_ms(&f) > most)
                fail_msg("executions of %g us took %g ms", us, took_ms(&f));
            assert_true(f.measured[0] > 0);
            assert_int_equal(f.r.candidates[f.r.usual].state, TUNING_MEASURED);
        }
}

/* By a single measurement only what is clearly faster is taken. */
TEST(long_executions_are_compared_once)
{
    struct fake f = fake_of(2, 0, 130000);
    struct error e;

    f.us[1] *= 0.97;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 0);
    f = fake_of(2, 0, 130000);
    f.us[1] *= 0.8;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 1);
}

/* Where pauses take all the time, short ones are not compared well either. */
TEST(a_disturbed_tuning_changes_little)
{
    struct error e;

    for (unsigned gain = 0; gain < 2; gain++) {
        struct fake f = fake_of(3, 0, 100);

        f.us[2] = gain ? 50 : 90;
        f.wait_us = 100000;
        assert_int_equal(run(&f, &e), 0);
        assert_int_equal(f.r.best, gain ? 2 : 0);
        assert_true(took_ms(&f) < 1000);
    }
}

/* The finals have as many members as rounds of them fit, with the pauses that there are. */
TEST(a_busy_device_has_finals_too)
{
    struct error e;

    for (unsigned n = 0; n < 50; n++) {
        struct fake f = fake_of(14, 2, 100);

        f.us[9] = 92;
        f.wait_us = 20000;
        assert_int_equal(run(&f, &e), 0);
        assert_int_equal(f.r.best, 9);
        assert_true(f.r.candidates[9].n >= 3);
        assert_true(took_ms(&f) < 900);
    }
}

TEST(the_choice_is_never_slower_than_the_usual_one)
{
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

TEST(one_that_cannot_is_none_and_a_cancelled_tuning_ends)
{
    struct fake f = fake_of(4, 2, 50);
    struct error e;

    f.fails = 1; /* the usual one */
    f.r.candidates[0].text[0] = 'x';
    f.us[5] = 20;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 5);
    assert_int_equal(f.r.candidates[0].state, TUNING_FAILED);
    assert_true(isnan(f.r.candidates[0].us) && f.r.candidates[0].tried);
    assert_string_equal(f.r.candidates[0].text, "x");
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

/* The library's first choice and what runs now, the library's next three, our own kernels, the rest. */
TEST(the_most_promising_come_first)
{
    static const unsigned order[] = {0, 7, 1, 2, 3, 10, 11, 4, 5, 6, 8, 9};
    struct fake f = fake_of(10, 2, 40);
    struct error e;

    f.r.before = 7;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.n_order, 12);
    assert_memory_equal(f.order, order, sizeof(order));
    assert_int_equal(f.r.n_new, 12);
    assert_int_equal(tuning_tried(&f.r), 12);
}

/* Candidates that are clearly slower are measured once, those that are a little slower not as often as the fastest. */
TEST(who_is_slower_is_measured_less)
{
    struct fake f = fake_of(12, 0, 100);
    struct error e;

    f.us[1] = 99;
    f.us[2] = 107;
    f.us[3] = 115;
    for (unsigned i = 4; i < 12; i++)
        f.us[i] = 140;
    assert_int_equal(run(&f, &e), 0);
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

/* However long it takes to load a candidate's code. */
TEST(loading_is_no_time_of_a_candidates)
{
    struct fake f = fake_of(6, 1, 50);
    struct error e;

    f.us[6] = 30;
    f.load_us = 40000;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 6);
    assert_true(f.r.candidates[6].us < 31);

    /* The first execution of a long one may say too little or too much. Nothing is chosen by it. */
    for (int part = -1; part <= 1; part += 2) {
        f = fake_of(3, 0, 40000);
        f.overlap_us = part * 8000;
        f.us[2] = 30000;
        assert_int_equal(run(&f, &e), 0);
        assert_int_equal(f.r.best, 2);
        assert_true(fabs(f.r.candidates[2].us - 30000) < 1000);
    }
    f = fake_of(2, 0, 260000); /* there is time for the usual one's and the other's first, but for no second */
    f.overlap_us = -100000;
    f.us[1] = 250000;
    f.us[0] = 300000;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 0);
    assert_int_equal(f.r.candidates[1].state, TUNING_LEFT_OUT);
    assert_false(f.r.candidates[1].tried);
    f = fake_of(2, 0, 215000); /* the usual one has its first execution alone, which says too little */
    f.overlap_us = -16000;
    f.r.before = 1;
    assert_int_equal(run(&f, &e), 0);
    assert_true(f.r.candidates[0].us < f.r.candidates[1].us * 0.94);
    assert_int_equal(f.r.best, 1);
}

/* A tuning that ended too early is gone on with: what was tried is passed over, and in the end all has been. */
TEST(a_later_tuning_goes_on)
{
    struct fake f = fake_of(40, 4, 8000);
    unsigned tunings = 0, fastest = 37, tried;
    struct error e;

    f.us[fastest] = 6000;
    do {
        unsigned counts[TUNING_CANDIDATES_MAX];
        bool were_tried[TUNING_CANDIDATES_MAX];

        for (unsigned i = 0; i < f.r.n; i++)
            were_tried[i] = f.r.candidates[i].tried;
        memset(f.measured, 0, sizeof(f.measured));
        f.n_order = 0;
        assert_int_equal(run(&f, &e), 0);
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
        struct error e;

        f.patient = patient;
        f.us[2] = 500000;
        for (unsigned i = 0; i < 4; i++) {
            memset(f.measured, 0, sizeof(f.measured));
            f.n_order = 0;
            assert_int_equal(run(&f, &e), 0);
            f.r.before = f.r.best;
        }
        assert_int_equal(tuning_tried(&f.r), patient ? 4 : 1);
        assert_int_equal(f.r.best, patient ? 2 : 0);
        assert_true(took_ms(&f) < (patient ? 4 * 3000 : 4 * 800));
    }
}

/* Where there was no time to compare with what runs now, it stays. */
TEST(what_was_not_compared_stays)
{
    struct fake f = fake_of(4, 0, 300000);
    struct error e;

    f.us[0] = 200000;
    f.r.before = 3;
    f.r.candidates[3].tried = true;
    f.r.candidates[3].us = 123;
    f.r.candidates[3].state = TUNING_SLOWER;
    f.wait_us = 250000;
    assert_int_equal(run(&f, &e), 0);
    assert_int_equal(f.r.best, 3);
    assert_int_equal(f.r.candidates[3].state, TUNING_LEFT_OUT);
    assert_true(f.r.candidates[3].us == 123);
}

/* Of executions of few microseconds a gain of 1 % is less than what lies between two of them. */
TEST(a_gain_is_more_than_a_tenth_of_a_microsecond)
{
    struct error e;

    for (unsigned i = 0; i < 2; i++) {
        struct fake f = fake_of(2, 0, 4);

        f.noise = 0.001;
        f.us[1] = i ? 3.8 : 3.92;
        assert_int_equal(run(&f, &e), 0);
        assert_int_equal(f.r.best, i);
    }
}
