/* The circuit breaker by a clock of the test's. */
#include "remote/remote.h"
#include "tests/support/unit.h"

TEST(opens_after_failures_in_a_row)
{
    struct breaker b = {0};

    for (unsigned i = 0; i < 10; i++) { /* an answer in between forgets them */
        assert_true(breaker_allows(&b, 0));
        assert_false(breaker_fail(&b, 0));
        assert_true(breaker_allows(&b, 0));
        assert_false(breaker_fail(&b, 0));
        assert_true(breaker_allows(&b, 0));
        assert_false(breaker_succeed(&b));
    }
    for (unsigned i = 1; i <= BREAKER_FAILURES; i++) {
        assert_true(breaker_allows(&b, 5));
        assert_int_equal(breaker_fail(&b, 5), i == BREAKER_FAILURES);
    }
    assert_false(breaker_allows(&b, 5));
    assert_int_equal(breaker_rests(&b, 5), BREAKER_FIRST_MS);
    assert_false(breaker_allows(&b, 5 + BREAKER_FIRST_MS - 1));
    for (unsigned i = 0; i < 10; i++) /* those that were on their way when it opened */
        breaker_fail(&b, 6);
    assert_int_equal(breaker_rests(&b, 5), BREAKER_FIRST_MS);
    assert_true(breaker_allows(&b, 5 + BREAKER_FIRST_MS));
    breaker_abandon(&b); /* nobody waits for the trial any more: the next one is a trial */
    assert_true(breaker_allows(&b, 5 + BREAKER_FIRST_MS));
}

TEST(rests_twice_as_long_each_time)
{
    struct breaker b = {0};
    uint64_t now = 0;
    unsigned rest = BREAKER_FIRST_MS;

    for (unsigned i = 0; i < BREAKER_FAILURES; i++)
        breaker_fail(&b, now);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(breaker_rests(&b, now), rest);
        now += rest;
        assert_true(breaker_allows(&b, now));  /* one trial … */
        assert_false(breaker_allows(&b, now)); /* … and no more */
        assert_false(breaker_fail(&b, now));   /* which is no news */
        rest = 2 * rest < BREAKER_LAST_MS ? 2 * rest : BREAKER_LAST_MS;
    }
    assert_int_equal(rest, BREAKER_LAST_MS);
    now += rest;
    assert_true(breaker_allows(&b, now));
    assert_true(breaker_succeed(&b));
    assert_true(breaker_allows(&b, now));
    assert_int_equal(breaker_rests(&b, now), 0);
}
