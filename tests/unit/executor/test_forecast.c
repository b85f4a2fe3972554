/* When jobs are likely to end, and how a party waits by that. */
#include "executor/forecast.h"
#include "tests/support/unit.h"

enum { US = 1000, MS = 1000 * US };

static struct forecast table;

static void make_square(struct step *step, uint64_t count)
{
    memset(step, 0, sizeof(*step));
    step->op = OP_SQUARE;
    step->plan.kind = PLAN_ELEMENTWISE;
    step->plan.elementwise.count = count;
}

TEST(a_kind_is_known_by_what_it_does)
{
    struct step steps[2], other;
    struct backend_job job = {.steps = steps, .n_steps = 1, .repeat = 1},
                       larger = {.steps = &other, .n_steps = 1, .repeat = 1};

    make_square(&steps[0], 1024);
    make_square(&steps[1], 1024);
    make_square(&other, 4096);
    assert_true(forecast_key(&job, 0) == forecast_key(&job, 0));
    assert_true(forecast_key(&job, 0) != forecast_key(&larger, 0));
    assert_true(forecast_key(&job, 0) != forecast_key(&job, 7)); /* a program */
    larger = job;
    larger.n_steps = 2;
    assert_true(forecast_key(&job, 0) != forecast_key(&larger, 0));
    larger = job;
    larger.domain = 1; /* what a user's process says is believed of that user's work alone */
    assert_true(forecast_key(&job, 0) != forecast_key(&larger, 0));
}

TEST(a_forecast_is_of_one_execution)
{
    struct step step;
    struct backend_job once = {.steps = &step, .n_steps = 1, .repeat = 1},
                       often = {.steps = &step, .n_steps = 1, .warmup = 2, .repeat = 8};
    uint64_t key;

    make_square(&step, 77);
    key = forecast_key(&once, 0);
    assert_int_equal(forecast_of(&table, key, &once), 0);
    forecast_learn(&table, key, &often, 10 * MS);
    assert_int_equal(forecast_of(&table, key, &once), MS);
    assert_int_equal(forecast_of(&table, key, &often), 10 * MS);
    /* It had ended before anybody looked, perhaps since a timer was late: the next window is earlier, and has that end.
     */
    forecast_learn_less(&table, key);
    assert_true(forecast_of(&table, key, &once) < MS);
    assert_true(wait_window_of(0, forecast_of(&table, key, &once)).to_ns > 950 * US);
}

/* A party that was woken late sees long times: they must not make it sleep longer the next time. */
TEST(the_shortest_time_counts)
{
    uint64_t expected = wait_learn(0, 500 * US);

    assert_int_equal(expected, 500 * US);
    assert_int_equal(wait_learn(expected, 300 * US), 300 * US);
    assert_true(wait_learn(expected, 900 * US) <= 600 * US);
    assert_true(wait_learn(expected, UINT64_MAX) < 2 * expected);
    for (unsigned i = 0; i < 200; i++)
        expected = wait_learn(expected, 900 * US);
    assert_true(expected > 800 * US);  /* work that takes longer from now on is learned, too */
    assert_true(wait_learn(0, 0) > 0); /* seen */
}

TEST(a_party_sleeps_before_the_window_and_polls_in_it)
{
    const uint64_t begin = 1000 * (uint64_t)MS;
    const struct wait_window known = wait_window_of(begin, 2 * MS), tiny = wait_window_of(begin, 5 * US),
                             unknown = wait_window_of(begin, 0), none = {0}, crowded = {.to_ns = WAIT_CROWDED};

    assert_true(wait_is_known(&known) && wait_is_known(&unknown) && !wait_is_known(&none) && !wait_is_known(&crowded));
    assert_true(wait_sleeps_first(&known, begin) && !wait_polls(&known, begin));
    assert_true(wait_polls(&known, begin + 2 * MS - 50 * US) && wait_polls(&known, begin + 2 * MS));
    assert_false(wait_polls(&known, begin + 3 * MS)); /* the forecast was wrong */
    assert_true(known.from_ns < begin + 2 * MS - WAIT_LEAD_NS);
    assert_true(wait_polls(&tiny, begin) && !wait_sleeps_first(&tiny, begin));
    assert_true(wait_polls(&unknown, begin) && wait_polls(&unknown, begin + MS) &&
                !wait_polls(&unknown, begin + 3 * MS));
    assert_false(wait_sleeps_first(&none, begin) || wait_sleeps_first(&crowded, begin));
}

/* After a long sleep a processor wakes late: the last sleeps before a window are short, and the very last ends
 * with it. */
TEST(the_last_sleeps_before_a_window_are_short)
{
    const struct wait_window w = wait_window_of(0, 20 * MS);
    uint64_t now = 0, slept = UINT64_MAX;
    unsigned sleeps = 0;

    while (wait_sleeps_first(&w, now)) {
        const uint64_t end = wait_sleep_end(&w, now);

        assert_true(end > now && end <= w.from_ns);
        slept = end - now;
        if (sleeps++)
            assert_true(slept <= WAIT_NAP_NS + WAIT_LEAST_SLEEP_NS);
        now = end;
    }
    assert_true(sleeps > 1 && sleeps <= 1 + WAIT_NAPS);
    assert_true(wait_polls(&w, now) && now + WAIT_LEAST_SLEEP_NS >= w.from_ns);
}
