/* When a tuning measures on a device without work, with short requests, with long ones. */
#include "server/tune/pace.h"
#include "tests/support/unit.h"

enum { LOOK_US = 200, FIRST_JOB = 1000 };

static const uint64_t us = 1000, ms = 1000 * 1000;

/* A device that always has `running` jobs, and begins one every `each_us`; 0: none. */
struct device {
    uint64_t now_ns, begun;
    unsigned running;
    double each_us;
};

static void pass(struct device *d)
{
    const uint64_t before_ns = d->now_ns;

    d->now_ns += LOOK_US * us;
    if (d->each_us > 0)
        d->begun += (uint64_t)((double)d->now_ns / d->each_us / 1e3) - (uint64_t)((double)before_ns / d->each_us / 1e3);
}

static enum tune_word pause(struct tune_pace *p, struct device *d)
{
    enum tune_word word;

    tune_pace_begin(p, d->now_ns, d->begun);
    do {
        pass(d);
        word = tune_pace_look(p, d->now_ns, d->running, d->begun);
    } while (word == TUNE_WAIT);
    return word;
}

/* Between two measurements, in ms, in the mean of many; the device goes on meanwhile. */
static double between_ms(struct tune_pace *p, struct device *d)
{
    const uint64_t begin_ns = d->now_ns;

    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(pause(p, d), TUNE_GO);
    return (double)(d->now_ns - begin_ns) * 1e-8;
}

TEST(a_tuning_that_a_client_waits_for)
{
    static const struct {
        unsigned running;
        double each_us, least_ms, most_ms; /* between two measurements */
    } devices[] = {
        {0, 0, 0, 1.5},
        /* One request after the other, of up to 25 us: one in eight hundred is there when a measurement begins. */
        {1, 5, 799 * .005, 800 * .005 + 2e-3 * LOOK_US},
        {1, 20, 799 * .020, 800 * .020 + 2e-3 * LOOK_US},
        {1, 24, 799 * .024, 800 * .024 + 2e-3 * LOOK_US},
        /* As many clients as there are jobs at a time have as many requests each. */
        {8, 2, 6390 * .002, 6400 * .002 + 2e-3 * LOOK_US},
        {1, 5000, 19, 21}, /* however busy the device is */
    };

    for (unsigned i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        struct tune_pace p = {.since = FIRST_JOB};
        struct device d = {.begun = FIRST_JOB, .running = devices[i].running, .each_us = devices[i].each_us};
        const double got = between_ms(&p, &d);

        if (!(got >= devices[i].least_ms && got < devices[i].most_ms))
            fail_msg("device %u: %g ms", i, got);
    }
}

TEST(an_idle_tuning_waits_long_and_gives_up)
{
    struct tune_pace p = {.idle = true, .since = FIRST_JOB};
    struct device d = {.begun = FIRST_JOB, .running = 1, .each_us = 10};
    const uint64_t begin_ns = d.now_ns;

    assert_int_equal(pause(&p, &d), TUNE_GIVE_UP);
    assert_in_range(d.now_ns - begin_ns, 10000 * ms, 10001 * ms);
    d.running = 0;
    d.each_us = 50000; /* rarely is not never */
    assert_int_equal(pause(&p, &d), TUNE_GIVE_UP);
    d.each_us = 0;
    assert_true(between_ms(&p, &d) > 99);
}
